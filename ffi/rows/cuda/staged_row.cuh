// A row in the shared memory of its warp, of which some neighbouring lanes take every so many-th
// element each.
//
// Owns: which elements a lane has, and the steps of its operation on them. Must not know: where the
// row came from, or goes.
#ifndef JAXKERNELS_ROWS_CUDA_STAGED_ROW_CUH_
#define JAXKERNELS_ROWS_CUDA_STAGED_ROW_CUH_

#include <type_traits>

#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/plan.h"

namespace jaxkernels {

// Of a power of two.
__device__ inline int Log2OfPower(int power) { return __ffs(power) - 1; }

// The lanes that share a row, a power of two of them.
class RowLanes {
 public:
  __device__ explicit RowLanes(int lanes) : lanes_(lanes), log2_(Log2OfPower(lanes)) {}

  __device__ int Lane() const { return threadIdx.x & (lanes_ - 1); }
  // The number of lanes divides `threads`, rounded down.
  __device__ int RowOf(int threads) const { return threads >> log2_; }
  template <typename Reduction, int kCount>
  __device__ void AllReduce(typename Reduction::Value (&value)[kCount]) const {
#pragma unroll 1
    for (int mask = lanes_ / 2; mask > 0; mask /= 2) CombineAcross<Reduction>(mask, value);
  }

 private:
  const int lanes_, log2_;
};

// What a lane computes of a row: every `lanes`-th element, from its own on.
template <typename Op>
class StagedRow {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  static constexpr int kGroup = kStagedGroup;
  static constexpr bool kKeep = Op::kKeepsTerm && sizeof(T) == sizeof(C);

 public:
  // `first`: element of the first input; those of the others follow at distances of `stride`.
  __device__ StagedRow(const Op& op, T* first, int count, int stride, int lanes)
      : op_(op), first_(first), count_(count), stride_(stride), lanes_(lanes) {}

  // Replaces what row `index` of the array does not see. The lane's elements begin at `column`.
  __device__ void Hide(int64_t index, int64_t cols, int column) {
    const typename Op::View seen = op_.ViewOf(index, cols);
    for (int k = 0; k < count_; ++k, column += lanes_) {
      const bool in_band = column >= seen.begin && column < seen.end;
      if (in_band && (seen.mask == nullptr || seen.mask[column] != 0)) continue;
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) At(k, i) = FillOf<Op>(i);
    }
  }

  __device__ C MaxOfLane() {
    C max = -kInfinity<C>;
    ForGroups([&](auto whole, int k) {
      C value[kGroup][Op::kInputs];
      Gather(whole, k, value);
      max = Max(max, MaxOf(op_, value));
    });
    return max;
  }

  __device__ void AddTermsOfLane(C max, C (&sum)[Op::kSums]) {
    ForGroups([&](auto whole, int k) {
      C value[kGroup][Op::kInputs], term[kGroup];
      Gather(whole, k, value);
      AddTerms(op_, value, max, term, sum);
      if constexpr (kKeep) Scatter(whole, k, term);
    });
  }

  __device__ void FinishInPlace(const typename Op::Row& constants) {
    ForGroups([&](auto whole, int k) {
      C value[kGroup][Op::kInputs], result[kGroup];
      Gather(whole, k, value);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        if constexpr (kKeep) {
          result[j] = op_.FinishTerm(value[j][0], constants);
        } else {
          result[j] = op_.Finish(value[j], constants);
        }
      }
      Scatter(whole, k, result);
    });
  }

 private:
  __device__ T& At(int k, int input) const { return first_[input * stride_ + k * lanes_]; }

  // Groups of elements; whole: the lane has all of them.
  template <typename Body>
  __device__ void ForGroups(Body body) const {
    int k = 0;
#pragma unroll 2
    for (; k + kGroup <= count_; k += kGroup) body(std::true_type(), k);
    if (k < count_) body(std::false_type(), k);
  }

  template <typename Whole>
  __device__ void Gather(Whole, int k, C (&value)[kGroup][Op::kInputs]) const {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        value[j][i] = Whole::value || k + j < count_ ? static_cast<C>(At(k + j, i)) : Op::Fill(i);
      }
    }
  }

  template <typename Whole>
  __device__ void Scatter(Whole, int k, const C (&value)[kGroup]) const {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (Whole::value || k + j < count_) At(k + j, 0) = static_cast<T>(value[j]);
    }
  }

  const Op& op_;
  T* first_;
  int count_, stride_, lanes_;
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_STAGED_ROW_CUH_
