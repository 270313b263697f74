// Row operations on attention scores: scale, bias, mask and band are applied when a row is loaded.
//
// The method is OneFlow's: operations fused with the softmax are LOAD functors. A hidden element is
// replaced by Fill() as soon as its pack is loaded. Packs outside the band are not loaded.
#pragma once

#include <cstdint>

#include "rows/call.h"
#include "rows/cuda/arithmetic.cuh"
#include "rows/cuda/row_masks.cuh"
#include "rows/masked_rows.h"
#include "rows/ops/softmax.h"

namespace jaxkernels {

// The visible columns of rows of attention scores, and the scale of the scores.
template <typename T>
struct AttentionRows {
  using C = ComputeType<T>;
  struct VisibleColumns {
    int begin = 0, end = 0;         // columns within the band
    const uint8_t* mask = nullptr;  // of this row
    int64_t bias_shift = 0;         // offset from the row in the scores to its row in the bias
  };

  MaskedRows rows;
  C scale = 1;

  void Take(const RowCall& call) {
    rows = call.masking;
    scale = static_cast<C>(rows.scale);
  }

  template <typename Index>
  __device__ VisibleColumns VisibleOf(Index row, int64_t cols) const {
    const ColumnRange range = rows.ColumnsOf(row, cols);
    const int64_t bias_row = rows.bias_rows.Of(row);
    return {range.begin, range.end, rows.MaskOf(row, cols), (bias_row - int64_t{row}) * cols};
  }
};

// y = softmax(t) with t = scale * x + bias for visible columns and -inf for hidden ones. A row
// without visible columns gives zeros. (Half types do not compute in units of log 2, which would
// save a multiplication: the largest bfloat16 times log2(e) is infinite.)
template <typename T, Operation kOf>
struct AttentionForward : SoftmaxForward<Cuda<T>, kOf>, AttentionRows<T> {
  static constexpr int kArrays = TraitsOf(kOf).Inputs();
  using C = ComputeType<T>;
  using typename SoftmaxForward<Cuda<T>, kOf>::Row;
  using typename AttentionRows<T>::VisibleColumns;
  using AttentionRows<T>::scale;
  using MaskWord = MaskBytes<16 / sizeof(T)>;

  __device__ static C Fill(int) { return -kInfinity<C>; }
  // The product must not be contracted with the following subtraction: it would then differ from
  // the value whose maximum was taken, and a row of finite scores could become NaN.
  __device__ C Value(const C (&in)[kArrays]) const {
    if constexpr (kArrays == 1) {
      return RoundedProduct(scale, in[0]);
    } else {
      return fma(scale, in[0], in[1]);
    }
  }
  // If all elements are hidden, the shift is 0: the terms vanish, and inf - inf never makes a NaN.
  __device__ static C Reference(C max) { return max == -kInfinity<C> ? C(0) : max; }
  __device__ static C Hidden(const Row& row) { return C(0) * row.sum; }  // NaN if the row is
  __device__ C Term(const C (&in)[kArrays], C max) const {
    return ExpDifference<T>(Value(in), max);
  }
  __device__ C Finish(const C (&in)[kArrays], const Row& row) const { return row.Of(Value(in)); }
};

// dx = scale * y * (dy - sum(dy * y)). If y is zero, as for masked elements, dy is ignored, even a
// NaN.
template <typename T>
struct MaskedSoftmaxGrad : LinearOp<Cuda<T>, Operation::kMaskedSoftmaxGrad>, AttentionRows<T> {
  using C = ComputeType<T>;
  using typename LinearOp<Cuda<T>, Operation::kMaskedSoftmaxGrad>::Row;
  using typename AttentionRows<T>::VisibleColumns;
  using AttentionRows<T>::scale;

  __device__ static C Hidden(const Row& /*row*/) { return C(0); }
  __device__ static C Term(const C (&in)[2], C) { return in[0] == C(0) ? C(0) : in[0] * in[1]; }
  __device__ C Finish(const C (&in)[2], const Row& row) const {
    return in[0] == C(0) ? C(0) : scale * (in[0] * (in[1] - row.sum));
  }
};

}  // namespace jaxkernels
