// The row operations of cross entropy: what a row of logits with a label is reduced to, and the
// gradient of its loss.
//
// With S = sum exp(x - max), the loss of label l is log S + (max - x_l), and whatever smoothing,
// the square of the log-sum-exp or the entropy add to it follows from a few more numbers of the
// row. The gradient is a (multiple of) softmax plus a constant, and something else at the label:
// (p_l - 1) as expm1(-loss), since 1 - 1e-9 would be rounded to 1.
//
// The loss is float32 also of half types. So all types count the terms of the maximum apart, as
// log-softmax does of float32.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_OPS_LOSSES_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_OPS_LOSSES_CUH_

#include <cmath>

#include "core/reduce.cuh"
#include "rows/cuda/row_ops.cuh"

namespace jaxkernels {

// Columns [begin, end) of a row, and what their result is.
template <typename C>
struct OtherColumns {
  int begin, end;
  C result;

  __device__ bool Has(int column) const { return column >= begin && column < end; }
};

// The sums of a row, in this order:
//   rest    exp(x - max) of all but the maxima
//   count   the maxima
//   spread  exp(x - max) (x - max)
//   total   x - max, but for elements that are -inf
//   seen    the elements that are not -inf
// The last three are zero unless all sums are wanted.
template <typename T>
struct CrossEntropyOp : ForwardOp<T, 1, 5> {
  using Base = ForwardOp<T, 1, 5>;
  using typename Base::C;
  using typename Base::Found;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesLabel = true;
  static constexpr int kStores = 7;
  // Below it exponentials are zero.
  static constexpr C kLeastExponent = -1000;

  bool all_sums;

  // A row of -inf alone has no terms.
  __device__ static C Reference(C max) { return max == -kInfinity<C> ? C(0) : max; }
  __device__ static C Term(const C (&in)[1], C max) { return FastExp(in[0] - max); }
  __device__ static C SecondTerm(C& term, const C (&)[1]) {
    const C count = term == C(1) ? C(1) : C(0);
    term -= count;
    return count;
  }
  // Fills are -inf, as elements of the row may be: a sum that is -inf is taken again, element by
  // element.
  template <int kSize>
  __device__ void AddMore(const C (&value)[kSize][1], const C (&term)[kSize], C max,
                          C (&sum)[5]) const {
    if (!all_sums) return;
    C spread[kSize], difference[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      difference[j] = value[j][0] - max;
      spread[j] = term[j] * fmax(difference[j], kLeastExponent);
    }
    C total = SumPairwise(difference), seen = kSize;
    if (total == -kInfinity<C>) {
      total = seen = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (difference[j] == -kInfinity<C>) continue;
        total += difference[j];
        seen += 1;
      }
    }
    sum[2] += SumPairwise(spread);
    sum[3] += total;
    sum[4] += seen;
  }
  // The terms as those of log-softmax. A part of nothing but -inf has an infinite difference, and
  // no sums.
  __device__ static void Rescale(C (&sum)[5], C factor, C difference) {
    const C spread = sum[2] + difference * (sum[0] + sum[1]);
    const C joining = factor == C(1) ? C(0) : sum[1];
    sum[0] = (sum[0] + joining) * factor;
    sum[1] = (sum[1] - joining) * factor;
    sum[2] = factor == C(0) ? C(0) : spread * factor;
    sum[3] += sum[4] == C(0) ? C(0) : difference * sum[4];
  }

  // What is kept of a row, for the loss and for its derivatives.
  template <typename Given>
  __device__ static void Keep(const Found& of, const Given& given, C (&scalars)[7]) {
    scalars[0] = of.max;
#pragma unroll
    for (int s = 0; s < 5; ++s) scalars[1 + s] = of.sum[s];
    scalars[6] = given.labelled;
  }
};

// The statistics of a row, and the element at its label.
template <typename T>
struct CrossEntropyForward : CrossEntropyOp<T> {
  using typename CrossEntropyOp<T>::C;
  using typename CrossEntropyOp<T>::Found;
  static constexpr Operation kOperation = Operation::kCrossEntropyForward;
  static constexpr bool kStoresElements = false;

  struct Row {
    C scalars[7];
    OtherColumns<C> other;
    template <typename Given>
    __device__ Row(const Found& of, const Given& given) {
      CrossEntropyOp<T>::Keep(of, given, scalars);
    }
  };
};

// The same, and the gradient of weight * loss, given the weight, q, share and z:
//   loss = q (lse - x_l) + share sum (lse - x) + z lse^2
// where the sum goes over the elements that are not -inf. A row without a label, or of the weight
// 0, has the gradient 0, whatever its elements are; that of one whose label is beyond it is NaN.
template <typename T>
struct CrossEntropyForwardGrad : CrossEntropyOp<T> {
  using typename CrossEntropyOp<T>::C;
  using typename CrossEntropyOp<T>::Found;
  static constexpr Operation kOperation = Operation::kCrossEntropyForwardGrad;
  static constexpr int kTakes = 4;

  struct Row {
    C scalars[7];
    C max, factor, constant;
    OtherColumns<C> other;
    template <typename Given>
    __device__ Row(const Found& of, const Given& given) : max(of.max) {
      CrossEntropyOp<T>::Keep(of, given, scalars);
      const C weight = given.scalar[0], share = given.scalar[2], seen = of.sum[4];
      const C log_sum = log1p(of.sum[0] + (of.sum[1] - 1));
      const C loss = log_sum + (of.max - given.labelled);
      const C slope = 2 * given.scalar[3] * (of.max + log_sum);
      const C mass = given.scalar[1] + share * seen + slope;  // what multiplies softmax
      factor = weight * mass / (of.sum[0] + of.sum[1]);
      constant = -weight * share;
      const int cols = static_cast<int>(given.cols);  // labels reach as far
      other = {given.label, given.label + 1,
               weight * (mass * expm1(-loss) + (share * (seen - 1) + slope))};
      if (given.label < 0 || weight == C(0)) {
        other = {0, cols, C(0)};
      } else if (given.label >= cols) {
        other = {0, cols, static_cast<C>(NAN)};
      }
    }
  };

  __device__ static C Finish(const C (&in)[1], const Row& row) {
    return fma(ExpDifference<T>(in[0], row.max), row.factor, row.constant);
  }
};

// The gradient, given what was kept of the row and the cotangents of lse - x_l, of lse, of the
// entropy and of sum (lse - x). A row whose cotangents are 0 has the gradient 0, whatever its
// elements are; that of one whose label is beyond it is NaN. A label may also be elsewhere, in
// columns of another device.
template <typename T>
struct CrossEntropyGrad : RowOp<T> {
  using typename RowOp<T>::C;
  using typename RowOp<T>::Found;
  static constexpr Operation kOperation = Operation::kCrossEntropyGrad;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;
  static constexpr int kSums = 0;
  static constexpr bool kTakesLabel = true;
  static constexpr int kTakes = 11;

  // dx = exp(x - max) (factor + slope (x - max)) + constant, but at the label
  struct Row {
    C max, factor, slope, constant;
    OtherColumns<C> other;
    template <typename Given>
    __device__ Row(const Found&, const Given& given) : max(given.scalar[0]) {
      const C rest = given.scalar[1], count = given.scalar[2], sum = rest + count;
      const C mean = given.scalar[3] / sum, seen = given.scalar[5], labelled = given.scalar[6];
      const C of_loss = given.scalar[7], of_lse = given.scalar[8], of_entropy = given.scalar[9];
      const C of_rest = given.scalar[10];
      const C others = of_lse + of_rest * seen;
      factor = (of_loss + others + of_entropy * mean) / sum;
      slope = -of_entropy / sum;
      constant = -of_rest;
      // 1 - 1e-9 would be rounded to 1.
      const C minus_loss = (labelled - max) - log1p(rest + (count - 1));
      const C difference = fmax(labelled - max, CrossEntropyOp<T>::kLeastExponent);
      other = {given.label, given.label + 1,
               of_loss * expm1(minus_loss) +
                   exp(minus_loss) * (others - of_entropy * (difference - mean)) - of_rest};
      const int cols = static_cast<int>(given.cols);  // labels reach as far
      if (of_loss == C(0) && of_lse == C(0) && of_entropy == C(0) && of_rest == C(0)) {
        other = {0, cols, C(0)};
      } else if (of_loss != C(0) && isnan(labelled)) {
        other = {0, cols, labelled};
      }
    }
  };

  __device__ static C Fill(int) { return C(0); }
  __device__ static C Finish(const C (&in)[1], const Row& row) {
    const C difference = fmax(in[0] - row.max, CrossEntropyOp<T>::kLeastExponent);
    return fma(ExpDifference<T>(in[0], row.max), fma(row.slope, difference, row.factor),
               row.constant);
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_OPS_LOSSES_CUH_
