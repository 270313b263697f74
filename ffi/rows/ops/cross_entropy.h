// Cross entropy: the row constants of a loss and its gradient.
//
// With S = sum exp(x - max), the loss of label l is log S + (max - x_l). Label smoothing, the
// square of the log-sum-exp and the entropy need a few more sums. The gradient is a multiple of
// softmax plus a constant, except at the label, where it has p_l - 1. This is computed from the sum
// of the other terms, since 1 - 1e-9 would be rounded to 1.
//
// The loss is float32 for half types too. So all types count the terms of the maximum separately,
// as log-softmax does in float32. The sums of a row, in this order:
//   rest    exp(x - max) of all elements but the maxima
//   count   number of maxima
//   spread  exp(x - max) (x - max)
//   total   (x - max) kTotalScale of the elements that are not -inf
//   seen    number of elements that are not -inf
// The last three are meaningful only if the call wants all sums.
//
// cuda/row_ops_losses.cuh and cpu/cross_entropy_ops.h have the terms of these sums, which depend on
// the order in which a platform adds them.
#pragma once

#include <cmath>

#include "rows/ops/row_op.h"

namespace jaxkernels {

// The row scalars of a loss: its residuals, then the cotangents that the gradient takes.
struct LossScalar {
  enum : int { kMax, kRest, kCount, kSpread, kTotal, kSeen, kLabelled };
  enum : int { kOfLoss = kLossResiduals, kOfLse, kOfEntropy, kOfMean };
};
static_assert(LossScalar::kLabelled + 1 == kLossResiduals);

// Lower bound of x - max as a factor of a term: below it the term is 0, and 0 * -inf would be NaN.
inline constexpr int kLeastLogitExponent = -1000;

// Operations that sum exp(x - max). A row of -inf only has no terms; its shift is 0.
template <typename A, Operation kOf>
struct LossOp : ForwardOp<A, kOf> {
  using typename ForwardOp<A, kOf>::C;
  JK_OP static C Reference(C max) { return max == -A::kInfinity ? C(0) : max; }
};

// The share of the smoothing per visible element. `seen` is not counted if there is no smoothing.
template <typename C>
JK_OP C ShareOf(C smoothing, C seen) {
  return smoothing == C(0) || seen == C(0) ? C(0) : smoothing / seen;
}

// `number`, or 0 for an element of -inf.
template <typename A>
JK_OP typename A::C Visible(typename A::C element, typename A::C number) {
  return element == -A::kInfinity ? typename A::C(0) : number;
}

// (p - 1) S of an element, given its term p S. For the maximum it follows from the other terms;
// otherwise p is at most 1/2, and no digits are lost.
template <typename C>
JK_OP C TermMinusSum(C term, C rest, C count) {
  return (term - 1) - (rest + (count - 1));
}

// Row constants of the gradient of weight * loss for all columns: dx = exp(x - max) factor +
// constant, or just the constant if `is_left_out`.
template <typename A>
struct LossColumns {
  using C = typename A::C;
  C max, factor, constant;
  bool is_left_out;
};

// All row constants of that gradient, given the weight, q, smoothing and z:
//   loss = q (lse - x_l) + smoothing mean (lse - x) + z lse^2
// The mean is over the elements that are not -inf; the others have the gradient 0. A row without a
// label or with weight 0 has the gradient 0, even if it has NaNs. A row with label >= cols has the
// gradient NaN.
template <typename A>
struct LossRow : LossColumns<A> {
  using C = typename A::C;
  using LossColumns<A>::constant;
  using LossColumns<A>::factor;
  using LossColumns<A>::is_left_out;
  using LossColumns<A>::max;
  C scalars[kLossResiduals];  // the residuals
  C weight, own, others, share, inverse;
  int label;

  LossRow() = default;
  template <typename Found, typename Given>
  JK_OP LossRow(const Found& stats, const Given& given) {
    KeepResiduals(stats, given, scalars);
    max = stats.max, label = given.label;
    weight = given.scalar[0] * given.unit, own = given.scalar[1];
    const C z = given.scalar[3], seen = stats.sum[4], sum = stats.sum[0] + stats.sum[1];
    share = ShareOf<C>(given.scalar[2], seen);
    C slope = 0;
    if (z != C(0)) slope = 2 * z * (stats.max + A::Log1p(stats.sum[0] + (stats.sum[1] - 1)));
    others = share * seen + slope;
    inverse = C(1) / sum;
    factor = weight * (own + others) * inverse;  // softmax is multiplied by own + others
    constant = -weight * share;
    is_left_out = label < 0 || given.scalar[0] == C(0);
    if (is_left_out) constant = 0;
    if (!is_left_out && label >= given.cols) is_left_out = true, constant = static_cast<C>(NAN);
  }
  // Collects the residuals of a row, from which the loss and its derivatives are computed.
  template <typename Found, typename Given>
  JK_OP static void KeepResiduals(const Found& stats, const Given& given,
                                  C (&scalars)[kLossResiduals]) {
    scalars[LossScalar::kMax] = stats.max;
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int s = 0; s < kLossSums; ++s) scalars[LossScalar::kRest + s] = stats.sum[s];
    scalars[LossScalar::kLabelled] = given.labelled;
  }
  // The gradient at the label.
  // Requires: the row is not left out.
  JK_OP C AtLabel() const {
    const C rest = scalars[LossScalar::kRest], count = scalars[LossScalar::kCount];
    const C labelled = scalars[LossScalar::kLabelled], term = A::ExpDifference(labelled, max);
    const C less = TermMinusSum(term, rest, count) / (rest + count);
    // This is not written as (own + others) * less + ..., where `slope` would cancel.
    return weight * A::Fma(own, less, others * (term * inverse) - Visible<A>(labelled, share));
  }
};

// Stores the gradient, given the residuals of the row and the cotangents of lse - x_l, of lse, of
// the entropy and of mean (lse - x). A row whose cotangents are all 0 has the gradient 0, even if
// it has NaNs. A row with label >= cols has the gradient NaN. The label may also lie in the columns
// of another device.
template <typename A>
struct CrossEntropyGradOp : RowOp<A, Operation::kCrossEntropyGrad> {
  using typename RowOp<A, Operation::kCrossEntropyGrad>::C;

  // dx = exp(x - max) (factor + slope (x - max)) + constant, except in the columns `other`
  struct Row {
    using Sum = typename A::Sum;
    C max, factor, slope, constant;
    typename A::OtherColumns other;

    Row() = default;
    JK_OP explicit Row(const auto& given) : max(given.scalar[LossScalar::kMax]) {
      using Index = LossScalar;
      const auto& scalar = given.scalar;
      const Sum rest = scalar[Index::kRest], count = scalar[Index::kCount], sum = rest + count;
      const Sum inverse = Sum(1) / sum, mean = scalar[Index::kSpread] * inverse;
      const Sum seen = scalar[Index::kSeen], labelled = scalar[Index::kLabelled];
      const Sum of_loss = scalar[Index::kOfLoss], of_lse = scalar[Index::kOfLse];
      const Sum of_entropy = scalar[Index::kOfEntropy], of_mean = scalar[Index::kOfMean];
      const Sum share = ShareOf<Sum>(of_mean, seen);
      const Sum others = of_lse + share * seen;
      factor = (of_loss + others + of_entropy * mean) * inverse * given.unit;
      slope = -of_entropy * inverse * given.unit;
      constant = -share * given.unit;
      const Sum term = A::OfSums::ExpDifference(labelled, max);
      const Sum less = TermMinusSum(term, rest, count) / sum;
      const Sum difference = A::Max(labelled - max, Sum(kLeastLogitExponent));
      other = {given.label, given.label + 1,
               (of_loss * less + term * inverse * (others - of_entropy * (difference - mean)) -
                Visible<typename A::OfSums>(labelled, share)) *
                   given.unit};
      const int cols = static_cast<int>(given.cols);  // it fits: read_call.cc checks
      if (of_loss == Sum(0) && of_lse == Sum(0) && of_entropy == Sum(0) && of_mean == Sum(0)) {
        other = {0, cols, Sum(0)};
      } else if (of_loss != Sum(0) && A::IsNaN(labelled)) {
        other = {0, cols, labelled};
      }
    }
  };
  JK_OP static Row MakeRow(const auto& /*stats*/, const auto& given) { return Row(given); }
  JK_OP static C Finish(const auto& in, const Row& row) {
    const C difference = A::Max(in[0] - row.max, C(kLeastLogitExponent));
    return A::Fma(A::ExpDifference(in[0], row.max), A::Fma(row.slope, difference, row.factor),
                  Visible<A>(in[0], row.constant));
  }
};

}  // namespace jaxkernels
