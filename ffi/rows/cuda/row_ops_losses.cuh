// Row operations of cross entropy on CUDA: the terms of its sums, which packs add.
// rows/ops/cross_entropy.h has the sums, the constants of a row and the gradients.
#pragma once

#include <limits>

#include "core/host_device.h"
#include "core/reduce.cuh"
#include "rows/cuda/arithmetic.cuh"
#include "rows/cuda/logit_scale.cuh"
#include "rows/cuda/row_masks.cuh"
#include "rows/ops/cross_entropy.h"

namespace jaxkernels {

// The transform of logits in a kernel of losses, apart from the temperature: none, a soft cap, or a
// mask, whose hidden logits become -inf when their pack is loaded.
enum class Logits { kPlain, kCapped, kMasked };

template <typename T, Logits kLogits>
struct LogitMask {
  struct VisibleColumns {};
  struct MaskWord {};
};
template <typename T>
struct LogitMask<T, Logits::kMasked> {
  struct VisibleColumns {
    int begin = 0, end = 0;         // all columns
    const uint8_t* mask = nullptr;  // of this row
  };
  using MaskWord = MaskBytes<Pack<T>::kSize>;

  const uint8_t* mask;
  BroadcastRows mask_rows;

  void Take(const RowCall& call) { mask = call.masking.mask, mask_rows = call.masking.mask_rows; }
  __device__ VisibleColumns VisibleOf(int64_t row, int64_t cols) const {
    return {0, static_cast<int>(cols), mask + mask_rows.Of(row) * cols};
  }
};

// Selects the sums of a loss: the first two, or all if the call wants them. kAlwaysTwo fixes this
// at compile time, which saves branches and six registers.
template <bool kAlwaysTwo>
struct WantedSums {
  bool all_sums;
  JK_HOST_DEVICE void Want(bool all) { all_sums = all; }
};
template <>
struct WantedSums<true> {
  static constexpr bool all_sums = false;
  JK_HOST_DEVICE void Want(bool) {}
};

template <typename T, Operation kOf, bool kTwoSums, Logits kLogits>
struct CrossEntropyOp : LossOp<Cuda<T>, kOf>, WantedSums<kTwoSums>, LogitMask<T, kLogits> {
  using Base = LossOp<Cuda<T>, kOf>;
  using typename Base::C;
  using typename Base::Found;
  using typename LogitMask<T, kLogits>::MaskWord;
  using typename LogitMask<T, kLogits>::VisibleColumns;
  static constexpr bool kIsMasked = kLogits == Logits::kMasked;
  static constexpr bool kCaps = kLogits == Logits::kCapped;
  // With a mask, only kernels of two sums (long rows) have an aligned form. This saves kernels.
  static constexpr bool kMayAlign = kLogits == Logits::kPlain || (kIsMasked && kTwoSums);
  static constexpr C kLowest = std::numeric_limits<C>::lowest();
  using Scale = LogitScale<T>;
  Scale scale;

  __device__ static C Term(const C (&in)[1], C max) { return FastExp(in[0] - max); }
  // For OneReadKernel: whether S - 1 would lose digits, where S is the first sum, of all terms. A
  // row of -inf alone has no terms.
  __device__ static bool NeedsCount(const Found& of) { return of.sum[0] > 0 && of.sum[0] < 2; }
  // Counts one maximum instead of all, which is exact enough unless NeedsCount.
  __device__ static void CountOneMax(Found& of) {
    if (of.sum[0] == C(0)) return;
    of.sum[0] -= 1;
    of.sum[1] = 1;
  }
  // Moves the terms of the maximum from the first sum to the second.
  template <int kSize>
  __device__ static void CountMax(C (&term)[kSize], C& count) {
#pragma unroll
    for (C& one : term) {
      if (one != C(1)) continue;
      one = 0;
      count += 1;
    }
  }
  template <int kSize>
  __device__ void AddMore(const C (&value)[kSize][1], C max, bool has_max, C (&term)[kSize],
                          C (&sum)[kLossSums]) const {
    if (this->all_sums) {
      C difference[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) difference[j] = value[j][0] - max;
      const auto counts = [&](int j) { return value[j][0] != -kInfinity<C>; };
      AddWeighted(difference, counts, term, sum);
    }
    if (has_max) CountMax(term, sum[1]);
  }
  // `counts(j)` is false for elements of -inf, padding among them. A sum of -inf means that there
  // are some, or that differences of finite elements overflowed; then each element is tested.
  template <int kSize, typename Counts>
  __device__ static void AddWeighted(const C (&difference)[kSize], const Counts& counts,
                                     const C (&term)[kSize], C (&sum)[kLossSums]) {
    C spread = 0;
    const C total = SumPairwise(difference);
    if (total != -kInfinity<C>) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) spread = fma(term[j], difference[j], spread);
      sum[3] = fma(total, C(kTotalScale), sum[3]);
      sum[4] += kSize;
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (!kIsMasked && !counts(j)) continue;  // rare without a mask
        const bool is_seen = !kIsMasked || counts(j);
        const C bounded = is_seen ? fmax(difference[j], kLowest) : C(0);
        spread = fma(term[j], bounded, spread);
        sum[3] = fma(bounded, C(kTotalScale), sum[3]);
        sum[4] += is_seen ? 1 : 0;
      }
    }
    sum[2] += spread;
  }
  // Rescales the terms as log-softmax does. A part with -inf only has an infinite difference and no
  // sums.
  __device__ static void Rescale(C (&sum)[kLossSums], C factor, C difference) {
    const C spread = sum[2] + difference * (sum[0] + sum[1]);
    const C joining = factor == C(1) ? C(0) : sum[1];
    sum[0] = (sum[0] + joining) * factor;
    sum[1] = (sum[1] - joining) * factor;
    sum[2] = factor == C(0) ? C(0) : spread * factor;
    sum[3] += sum[4] == C(0) ? C(0) : fmax(difference, kLowest) * kTotalScale * sum[4];
  }
};

// Stores the statistics of a row and the element at its label.
template <typename T, bool kTwoSums, Logits kLogits>
struct CrossEntropyForward : CrossEntropyOp<T, Operation::kCrossEntropyForward, kTwoSums, kLogits> {
  static constexpr bool kOnlyLong = kTwoSums;
  struct Row {
    ComputeType<T> scalars[kLossResiduals];
    typename Cuda<T>::OtherColumns other;  // unused; without it, the kernels compile differently
  };
  __device__ static Row MakeRow(const auto& of, const auto& given) {
    Row row;
    LossRow<Cuda<T>>::KeepResiduals(of, given, row.scalars);
    return row;
  }
};

// As CrossEntropyForward, and also stores the gradient.
template <typename T, bool kTwoSums, Logits kLogits>
struct CrossEntropyForwardGrad
    : CrossEntropyOp<T, Operation::kCrossEntropyForwardGrad, kTwoSums, kLogits> {
  using C = ComputeType<T>;
  static constexpr bool kOnlyLong = kTwoSums;
  using Columns = LossColumns<Cuda<T>>;
  using LedRow = LossRow<Cuda<T>>;
  struct Row : LedRow {
    typename Cuda<T>::OtherColumns other;
    __device__ Row(const auto& of, const auto& given) : LedRow(of, given) {
      const C at_label =
          kLogits == Logits::kPlain ? this->AtLabel() : this->AtLabel() * given.slope;
      other = {this->label, this->label + 1, at_label};
      const int cols = static_cast<int>(given.cols);  // it fits: read_call.cc checks
      if (this->is_left_out) other = {0, cols, this->constant};
    }
  };
  __device__ static Row MakeRow(const auto& of, const auto& given) { return Row(of, given); }

  // With two sums there is no smoothing and the constant is 0, for hidden elements too.
  __device__ static C Finish(const C (&in)[1], const Columns& row) {
    C constant = row.constant;
    if constexpr (!kTwoSums) constant = Visible<Cuda<T>>(in[0], constant);
    return fma(ExpDifference<T>(in[0], row.max), row.factor, constant);
  }
};

// Stores the gradient, given the residuals of the row and cotangents.
template <typename T, Logits kLogits>
struct CrossEntropyGrad : CrossEntropyGradOp<Cuda<T>>, LogitMask<T, kLogits> {
  using Base = CrossEntropyGradOp<Cuda<T>>;
  using typename Base::C;
  using typename Base::Row;
  using typename LogitMask<T, kLogits>::MaskWord;
  using typename LogitMask<T, kLogits>::VisibleColumns;
  static constexpr bool kCaps = kLogits == Logits::kCapped;
  static constexpr bool kMayAlign = kLogits != Logits::kCapped;
  using Scale = LogitScale<T>;
  Scale scale;

  __device__ static C Fill(int) { return kLogits == Logits::kMasked ? -kInfinity<C> : C(0); }
  __device__ static C Labelled(const auto& scalars) { return scalars[LossScalar::kLabelled]; }
  __device__ static Row MakeRow(const auto& of, const auto& given) {
    Row row = Base::MakeRow(of, given);
    if (kLogits != Logits::kPlain) row.other.result *= given.slope;
    return row;
  }
};

}  // namespace jaxkernels
