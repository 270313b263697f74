// Cross entropy on the CPU: the statistics of a row of logits with a label, and the gradient of its
// loss. ffi/rows/cuda/row_ops_losses.cuh does the same on CUDA and gives the reasons.
//
// Owns: these operations. Must not know: the loops over rows (row_drivers.h), XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_OPS_H_
#define JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_OPS_H_

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/cpu/row_ops.h"

namespace jaxkernels {

// Lower exponents give zero.
inline constexpr int kLeastLogitExponent = -1000;

// The share of the smoothing per visible element. `seen` is not counted if there is no smoothing.
JK_INLINE double ShareOf(double smoothing, double seen) {
  return smoothing == 0 || seen == 0 ? 0 : smoothing / seen;
}

// The gradient of an element is exp(x - max) (factor + slope (x - max)) + constant, without the
// constant if x is -inf; `sum` is the factor and `extra` the slope. At the label, or everywhere if
// `is_everywhere`, it is `there`.
template <typename T, int kCount>
struct CrossEntropyOp : RowOp<T, kCount> {
  using typename RowOp<T, kCount>::C;
  static constexpr int kInputs = 1;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesLabel = true;
};

// The sums of a row, in this order:
//   rest    exp(x - max) of all elements but the maxima
//   count   number of maxima
//   spread  exp(x - max) (x - max)
//   total   (x - max) kTotalScale of the elements that are not -inf
//   seen    number of elements that are not -inf
// The last three are zero unless kAll.
template <typename T, bool kAll>
struct LogitSums : CrossEntropyOp<T, 5> {
  using typename CrossEntropyOp<T, 5>::C;
  static constexpr bool kUsesMax = true;
  static constexpr int kTermSums = kAll ? 5 : 2;
  static constexpr bool kCounts = true;
  static constexpr bool kHasNear = std::is_same_v<T, float> && !kAll;
  static constexpr int kStores = 7;

  // The maximum, or 0 for a row of -inf only, which has no terms.
  JK_INLINE static C Reference(C max) { return max == -kInf<C> ? C(0) : max; }
  JK_INLINE static C Term(C x, C, C max) { return ExpDifference<T>(x, max); }
  JK_INLINE static C NearReference(C max) { return PowerOf(max); }
  JK_INLINE static C NearTerm(C x, C power) { return ExpTimesPower(x, power); }
  JK_INLINE static C SecondTerm(C& term, C, bool is_of_max) {
    term = is_of_max ? C(0) : term;
    return is_of_max ? C(1) : C(0);
  }
  JK_INLINE static MoreSummands<C> MoreTerms(C term, C x, C max) {
    const C difference = x - max, least = kLeastLogitExponent;
    const C lowest = std::numeric_limits<C>::lowest();
    // This is a product because GCC 12 miscompiles `total += hidden ? 0 : difference`.
    const C is_seen = x == -kInf<C> ? C(0) : C(1);
    return {term * (difference < least ? least : difference),
            is_seen * kTotalScale * (difference < lowest ? lowest : difference), is_seen};
  }
};

// Stores the statistics of a row and the element at its label.
template <typename T, bool kAll>
struct CrossEntropyForward : LogitSums<T, kAll> {
  using typename LogitSums<T, kAll>::C;
  static constexpr Operation kOperation = Operation::kCrossEntropyForward;
  static constexpr bool kStoresElements = false;

  JK_INLINE static Row<C> MakeRow(const auto&, const RowInputs<C>&) { return {}; }
};

// As CrossEntropyForward, and also stores the gradient of weight * loss.
template <typename T, bool kAll>
struct CrossEntropyForwardGrad : LogitSums<T, kAll> {
  using typename LogitSums<T, kAll>::C;
  static constexpr Operation kOperation = Operation::kCrossEntropyForwardGrad;
  static constexpr int kTakes = 4;

  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>& given) {
    const double weight = given.taken[0], q = given.taken[1], z = given.taken[3];
    const double seen = of.sum[4], max = of.max, labelled = given.labelled;
    const double rest = of.sum[0] / of.of_max, share = ShareOf(given.taken[2], seen);
    const double log_sum = Log1p(rest + (of.sum[1] - 1));
    const double loss = log_sum + (max - labelled), slope = 2 * z * (max + log_sum);
    const double mass = q + share * seen + slope;  // the factor of softmax
    const double factor = weight * mass / (rest + of.sum[1]);
    // This is not written as mass * expm1(-loss) + ..., where `slope` would cancel.
    const double at_label = labelled == -kInf<double> ? 0 : share;
    const double others = (share * seen + slope) * Exp<true>(-loss, 0.0) - at_label;
    const double there = weight * (q * ExpMinusOne(-loss) + others);
    // A NaN or an infinity spoils the whole row, hidden elements too.
    const bool is_left_out = given.label < 0 || weight == 0;
    const bool is_spoiled = given.label > 0 || factor != factor;
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    return {of.max,
            C(factor / of.of_max),
            0,
            C(-weight * share),
            C(is_left_out  ? 0
              : is_spoiled ? kNaN
                           : there),
            is_left_out || is_spoiled ? C(1) : C(0)};
  }
  // The kept term of a hidden element (-inf) is -1 if the constant may be nonzero.
  JK_INLINE static C Kept(C term, C x) { return kAll && x == -kInf<C> ? C(-1) : term; }
  JK_INLINE static C FinishTerm(C term, C, const Row<C>& row) {
    if constexpr (!kAll) return term * row.sum + row.constant;
    return (term < 0 ? C(0) : term) * row.sum + (term < 0 ? C(0) : row.constant);
  }
  JK_INLINE static C Finish(C x, C, const Row<C>& row) {
    const C constant = kAll && x == -kInf<C> ? C(0) : row.constant;
    return ExpDifference<T>(x, row.max) * row.sum + constant;
  }
};

// Stores the gradient, given the residuals of the row and the cotangents of lse - x_l, of lse, of
// the entropy and of mean (lse - x).
template <typename T>
struct CrossEntropyGrad : CrossEntropyOp<T, 0> {
  using typename CrossEntropyOp<T, 0>::C;
  static constexpr Operation kOperation = Operation::kCrossEntropyGrad;
  static constexpr bool kUsesMax = false;
  static constexpr int kTakes = 11;

  JK_INLINE static Row<C> MakeRow(const auto&, const RowInputs<C>& given) {
    const double max = given.taken[0], rest = given.taken[1], number = given.taken[2];
    const double sum = rest + number, mean = given.taken[3] / sum, seen = given.taken[5];
    const double labelled = given.taken[6], of_loss = given.taken[7], of_lse = given.taken[8];
    const double of_entropy = given.taken[9], of_mean = given.taken[10];
    const double share = ShareOf(of_mean, seen), others = of_lse + share * seen;
    const double minus_loss = (labelled - max) - Log1p(rest + (number - 1));
    const double least = kLeastLogitExponent;
    const double difference = labelled - max < least ? least : labelled - max;
    const double there = of_loss * ExpMinusOne(minus_loss) +
                         Exp<true>(minus_loss, 0.0) * (others - of_entropy * (difference - mean)) -
                         (labelled == -kInf<double> ? 0 : share);
    const bool is_left_out = of_loss == 0 && of_lse == 0 && of_entropy == 0 && of_mean == 0;
    const bool is_unknown = of_loss != 0 && labelled != labelled;
    return {C(max),
            C((of_loss + others + of_entropy * mean) / sum),
            C(-of_entropy / sum),
            C(-share),
            C(is_left_out  ? 0
              : is_unknown ? labelled
                           : there),
            is_left_out || is_unknown ? C(1) : C(0)};
  }
  JK_INLINE static C Finish(C x, C, const Row<C>& row) {
    const C difference = x - row.max, least = kLeastLogitExponent;
    const C others = x == -kInf<C> ? C(0) : row.constant;
    const C factor = row.sum + row.extra * (difference < least ? least : difference);
    return ExpDifference<T>(x, row.max) * factor + others;
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_OPS_H_
