// Row operations of cross entropy: the statistics of a row of logits with a label, and the gradient
// of its loss.
//
// With S = sum exp(x - max), the loss of label l is log S + (max - x_l). Label smoothing, the
// square of the log-sum-exp and the entropy need a few more sums. The gradient is a multiple of
// softmax plus a constant, except at the label, where it has p_l - 1. This is computed from the sum
// of the other terms, since 1 - 1e-9 would be rounded to 1.
//
// The loss is float32 for half types too. So all types count the terms of the maximum separately,
// as log-softmax does in float32.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_OPS_LOSSES_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_OPS_LOSSES_CUH_

#include <cmath>
#include <limits>

#include "core/host_device.h"
#include "core/reduce.cuh"
#include "rows/cuda/logit_scale.cuh"
#include "rows/cuda/row_ops.cuh"

namespace jaxkernels {

// Columns [begin, end) of a row, and their result.
template <typename C>
struct OtherColumns {
  int begin, end;
  C result;

  __device__ bool Has(int column) const { return column >= begin && column < end; }
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

// The sums of a row, in this order:
//   rest    exp(x - max) of all elements but the maxima
//   count   number of maxima
//   spread  exp(x - max) (x - max)
//   total   (x - max) kTotalScale of the elements that are not -inf
//   seen    number of elements that are not -inf
// The last three are meaningful only if all_sums.
template <typename T, bool kTwoSums, bool kIsCapped>
struct CrossEntropyOp : ForwardOp<T, 1, 5>, WantedSums<kTwoSums> {
  using Base = ForwardOp<T, 1, 5>;
  using typename Base::C;
  using typename Base::Found;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesLabel = true;
  static constexpr bool kTakesScales = true;
  static constexpr bool kCaps = kIsCapped;
  static constexpr bool kMayAlign = !kIsCapped;
  static constexpr int kStores = 7;
  static constexpr C kLowest = std::numeric_limits<C>::lowest();
  using Scale = LogitScale<T>;
  Scale scale;

  // A row of -inf only has no terms; its shift is 0.
  __device__ static C Reference(C max) { return max == -kInfinity<C> ? C(0) : max; }
  __device__ static C Term(const C (&in)[1], C max) { return FastExp(in[0] - max); }
  // Whether S - 1 would lose digits; the first sum must hold all terms. A row of -inf only has no
  // terms.
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
                          C (&sum)[5]) const {
    if (this->all_sums) AddWeighted(value, max, term, sum);
    if (has_max) CountMax(term, sum[1]);
  }
  // Padding is -inf, and elements of the row may be -inf too. A sum of -inf means that there are
  // some, or that differences of finite elements overflowed: then each element is tested.
  template <int kSize>
  __device__ static void AddWeighted(const C (&value)[kSize][1], C max, const C (&term)[kSize],
                                     C (&sum)[5]) {
    C difference[kSize], spread = 0;
#pragma unroll
    for (int j = 0; j < kSize; ++j) difference[j] = value[j][0] - max;
    const C total = SumPairwise(difference);
    if (total != -kInfinity<C>) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) spread = fma(term[j], difference[j], spread);
      sum[3] = fma(total, C(kTotalScale), sum[3]);
      sum[4] += kSize;
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (value[j][0] == -kInfinity<C>) continue;
        const C bounded = fmax(difference[j], kLowest);
        spread = fma(term[j], bounded, spread);
        sum[3] = fma(bounded, C(kTotalScale), sum[3]);
        sum[4] += 1;
      }
    }
    sum[2] += spread;
  }
  // Rescales the terms as log-softmax does. A part with -inf only has an infinite difference and no
  // sums.
  __device__ static void Rescale(C (&sum)[5], C factor, C difference) {
    const C spread = sum[2] + difference * (sum[0] + sum[1]);
    const C joining = factor == C(1) ? C(0) : sum[1];
    sum[0] = (sum[0] + joining) * factor;
    sum[1] = (sum[1] - joining) * factor;
    sum[2] = factor == C(0) ? C(0) : spread * factor;
    sum[3] += sum[4] == C(0) ? C(0) : fmax(difference, kLowest) * kTotalScale * sum[4];
  }

  // The share of the smoothing per visible element. `seen` is not counted if there is no smoothing.
  __device__ static C ShareOf(C smoothing, C seen) {
    return smoothing == C(0) || seen == C(0) ? C(0) : smoothing / seen;
  }
  // `number`, or 0 for an element of -inf.
  __device__ static C Visible(C element, C number) {
    return element == -kInfinity<C> ? C(0) : number;
  }

  // (p - 1) S of an element, given its term p S. For the maximum it follows from the other terms;
  // otherwise p is at most 1/2, and no digits are lost.
  __device__ static C LessThanOne(C term, C rest, C count) {
    return (term - 1) - (rest + (count - 1));
  }

  // Collects the residuals of a row, from which the loss and its derivatives are computed.
  template <typename Given>
  __device__ static void Keep(const Found& of, const Given& given, C (&scalars)[7]) {
    scalars[0] = of.max;
#pragma unroll
    for (int s = 0; s < 5; ++s) scalars[1 + s] = of.sum[s];
    scalars[6] = given.labelled;
  }
};

// Stores the statistics of a row and the element at its label.
template <typename T, bool kTwoSums, bool kIsCapped>
struct CrossEntropyForward : CrossEntropyOp<T, kTwoSums, kIsCapped> {
  using Base = CrossEntropyOp<T, kTwoSums, kIsCapped>;
  using typename Base::C;
  using typename Base::Found;
  static constexpr bool kOnlyLong = kTwoSums;
  static constexpr Operation kOperation = Operation::kCrossEntropyForward;
  static constexpr bool kStoresElements = false;

  struct Row {
    C scalars[7];
    OtherColumns<C> other;
    template <typename Given>
    __device__ Row(const Found& of, const Given& given) {
      Base::Keep(of, given, scalars);
    }
  };
};

// As CrossEntropyForward, and also stores the gradient of weight * loss, given the weight, q,
// smoothing and z:
//   loss = q (lse - x_l) + smoothing mean (lse - x) + z lse^2
// The mean is over the elements that are not -inf; the others have the gradient 0. A row without a
// label or with weight 0 has the gradient 0, even if it has NaNs. A row with label >= cols has the
// gradient NaN.
template <typename T, bool kTwoSums, bool kIsCapped>
struct CrossEntropyForwardGrad : CrossEntropyOp<T, kTwoSums, kIsCapped> {
  using Base = CrossEntropyOp<T, kTwoSums, kIsCapped>;
  using typename Base::C;
  using typename Base::Found;
  static constexpr bool kOnlyLong = kTwoSums;
  static constexpr Operation kOperation = Operation::kCrossEntropyForwardGrad;
  static constexpr int kTakes = 4;

  // Row constants for all columns: dx = exp(x - max) factor + constant, or just the constant if
  // `is_left_out`.
  struct Columns {
    C max, factor, constant;
    bool is_left_out;
  };
  // All row constants: also those for the column of the label, and the residuals.
  struct LedRow : Columns {
    using Columns::constant;
    using Columns::factor;
    using Columns::is_left_out;
    using Columns::max;
    C scalars[7];
    C weight, own, others, share, inverse;
    int label;

    LedRow() = default;
    template <typename Given>
    __device__ LedRow(const Found& of, const Given& given) {
      Base::Keep(of, given, scalars);
      max = of.max, label = given.label;
      weight = given.scalar[0] * given.unit, own = given.scalar[1];
      const C z = given.scalar[3], seen = of.sum[4], sum = of.sum[0] + of.sum[1];
      share = Base::ShareOf(given.scalar[2], seen);
      C slope = 0;
      if (z != C(0)) slope = 2 * z * (of.max + log1p(of.sum[0] + (of.sum[1] - 1)));
      others = share * seen + slope;
      inverse = C(1) / sum;
      factor = weight * (own + others) * inverse;  // softmax is multiplied by own + others
      constant = -weight * share;
      is_left_out = label < 0 || given.scalar[0] == C(0);
      if (is_left_out) constant = 0;
      if (!is_left_out && label >= given.cols) is_left_out = true, constant = static_cast<C>(NAN);
    }
    // The gradient at the label.
    // Requires: the row is not left out.
    __device__ C AtLabel() const {
      const C rest = scalars[1], count = scalars[2];
      const C term = ExpDifference<T>(scalars[6], max);
      const C less = Base::LessThanOne(term, rest, count) / (rest + count);
      // This is not written as (own + others) * less + ..., where `slope` would cancel.
      return weight * fma(own, less, others * (term * inverse) - Base::Visible(scalars[6], share));
    }
  };
  struct Row : LedRow {
    OtherColumns<C> other;
    template <typename Given>
    __device__ Row(const Found& of, const Given& given) : LedRow(of, given) {
      other = {this->label, this->label + 1, this->AtLabel()};
      const int cols = static_cast<int>(given.cols);  // labels reach as far
      if (this->is_left_out) other = {0, cols, this->constant};
    }
  };

  // With two sums there is no smoothing and the constant is 0, for hidden elements too.
  __device__ static C Finish(const C (&in)[1], const Columns& row) {
    C constant = row.constant;
    if constexpr (!kTwoSums) constant = Base::Visible(in[0], constant);
    return fma(ExpDifference<T>(in[0], row.max), row.factor, constant);
  }
};

// Stores the gradient, given the residuals of the row and the cotangents of lse - x_l, of lse, of
// the entropy and of mean (lse - x). A row whose cotangents are all 0 has the gradient 0, even if
// it has NaNs. A row with label >= cols has the gradient NaN. The label may also lie in the columns
// of another device.
template <typename T, bool kIsCapped>
struct CrossEntropyGrad : RowOp<T> {
  using Losses = CrossEntropyOp<T, false, kIsCapped>;
  using typename RowOp<T>::C;
  using typename RowOp<T>::Found;
  static constexpr Operation kOperation = Operation::kCrossEntropyGrad;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;
  static constexpr int kSums = 0;
  static constexpr bool kTakesLabel = true;
  static constexpr bool kTakesScales = true;
  static constexpr bool kCaps = kIsCapped;
  static constexpr bool kMayAlign = !kIsCapped;
  static constexpr int kTakes = 11;
  // Lower exponents give zero.
  static constexpr C kLeastExponent = -1000;
  using Scale = LogitScale<T>;
  Scale scale;

  // dx = exp(x - max) (factor + slope (x - max)) + constant, except at the label
  struct Row {
    C max, factor, slope, constant;
    OtherColumns<C> other;
    template <typename Given>
    __device__ Row(const Found&, const Given& given) : max(given.scalar[0]) {
      const C rest = given.scalar[1], count = given.scalar[2], sum = rest + count;
      const C inverse = C(1) / sum, mean = given.scalar[3] * inverse;
      const C seen = given.scalar[5], labelled = given.scalar[6];
      const C of_loss = given.scalar[7], of_lse = given.scalar[8], of_entropy = given.scalar[9];
      const C of_mean = given.scalar[10], share = Losses::ShareOf(of_mean, seen);
      const C others = of_lse + share * seen;
      factor = (of_loss + others + of_entropy * mean) * inverse * given.unit;
      slope = -of_entropy * inverse * given.unit;
      constant = -share * given.unit;
      const C term = ExpDifference<T>(labelled, max);
      const C less = Losses::LessThanOne(term, rest, count) / sum;
      const C difference = fmax(labelled - max, kLeastExponent);
      other = {given.label, given.label + 1,
               (of_loss * less + term * inverse * (others - of_entropy * (difference - mean)) -
                Losses::Visible(labelled, share)) *
                   given.unit};
      const int cols = static_cast<int>(given.cols);  // labels reach as far
      if (of_loss == C(0) && of_lse == C(0) && of_entropy == C(0) && of_mean == C(0)) {
        other = {0, cols, C(0)};
      } else if (of_loss != C(0) && isnan(labelled)) {
        other = {0, cols, labelled};
      }
    }
  };

  __device__ static C Fill(int) { return C(0); }
  __device__ static C Finish(const C (&in)[1], const Row& row) {
    const C difference = fmax(in[0] - row.max, kLeastExponent);
    return fma(ExpDifference<T>(in[0], row.max), fma(row.slope, difference, row.factor),
               Losses::Visible(in[0], row.constant));
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_OPS_LOSSES_CUH_
