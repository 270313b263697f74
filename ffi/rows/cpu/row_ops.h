// Row operations on the CPU: what each one reduces and stores. An operation does not know the loops
// over rows; the drivers in row_drivers.h use only the members below. ffi/rows/cuda/row_ops.cuh is
// the counterpart for CUDA. cross_entropy_ops.h has cross entropy.
//
// A row operation on storage type T (compute type C) is a struct with
//   kOperation its entry in the table of operations.h, which must agree with the constants below
//   kInputs    number of input arrays, 1 or 2: x; y and dy; x and dx
//   kUsesMax   whether the sums need the row's maximum
//   kKeepsTerm whether the result follows from the summand; a driver may then keep the summand in
//              place of the result until the sum is known
//   kSums      number of sums per row, 0, 1, 2 or 5; the first kTermSums are not always 0
//   kCounts    whether a lane sums second terms in C: whole numbers, or terms of half types
//   kTakes     number of scalars it reads per row
//   kTakesLabel whether a row has a label; the operation may then store elements and scalars
//   kTakesColumn whether it reads a number per column, which Term, SecondTerm and Finish then get
//   in
//              place of the shift, the term and after the inputs
//   kAverages  whether MakeRow gets the number of columns and an epsilon
//   kStoresElements whether it stores a result per element; if not, it has no Finish
//   kStores    number of scalars it stores per row: 0, 1 (Result), or 7: the maximum, the sums, and
//              the element at the label
//   Reference  maps the row's maximum to the shift that Term and MakeRow get as the maximum
//   Term       the summand of the first sum, from one element of each input and the shift
//   NearTerm   if kHasNear: the cheaper fixed-shift summand, for rows whose maximum is near 0. It
//              gets NearReference(max) instead of the maximum, and the terms of a row share a
//              factor, which MakeRow removes: Statistics::of_max
//   SecondTerm the summand of the second sum, from Term, the other input, and whether Term is that
//              of the maximum; it may modify the term
//   MoreTerms  the summands of the third to fifth sums, from Term before SecondTerm
//   MakeRow    the constants of a row, computed once from its statistics and RowInputs
//   Finish     one element of the result from the inputs; FinishTerm from a kept summand and the
//              second input. Kept maps a term to the kept summand
#ifndef JAXKERNELS_ROWS_CPU_ROW_OPS_H_
#define JAXKERNELS_ROWS_CPU_ROW_OPS_H_

#include <limits>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/operations.h"

namespace jaxkernels {

// Statistics of a row or a part of it: its maximum, and sums of terms relative to that maximum.
// `of_max` is the term of the maximum: 1, or a fixed-shift term.
template <typename C, int kCount>
struct Statistics {
  C max, of_max = 1;
  double sum[kCount > 0 ? kCount : 1];
};

// Row scalars that an operation reads. With labels: the element at the label (NaN if the label is
// too large), and -1, 0 or 1 for a label that is negative, a column, or too large. With means: the
// number of columns, and the number that is added to the first mean.
template <typename C>
struct RowInputs {
  C taken[11], labelled, label;
  double cols, epsilon;
};

// The third to fifth summands.
template <typename C>
struct MoreSummands {
  C spread, total, seen;
};

// The constants of a row; the meaning of `sum` and `extra` depends on the operation. With labels,
// the result at the label, or everywhere, is `there`. All operations share one layout, so that a
// driver can keep the constants of a group in arrays.
inline constexpr int kRowConstants = 6;
template <typename C>
struct Row {
  C max, sum, extra, constant = 0, there = 0, is_everywhere = 0;
};

// exp(x - max) for max >= x. It corrects the rounding error of x - max, which would cost |x - max|
// units in the last place (about 90 at the end of float32's range). Half types do not need that:
// their differences are exact, or the error is below their precision.
template <typename T, typename C>
JK_INLINE C ExpDifference(C x, C max) {
  const C difference = x - max;
  if constexpr (std::is_same_v<T, C>) {
    return Exp<true>(difference, DifferenceError(x, max, difference));
  } else {
    return Exp<true>(difference, C(0));
  }
}

// Defaults for the members of an operation.
template <typename T, int kCount = 1>
struct RowOp {
  using Storage = T;
  using C = CpuComputeType<T>;
  static constexpr int kSums = kCount;
  static constexpr int kTermSums = kCount;
  static constexpr bool kCounts = false;
  static constexpr bool kTakesLabel = false;
  static constexpr bool kTakesColumn = false;
  static constexpr bool kAverages = false;
  static constexpr int kTakes = 0;
  static constexpr bool kStoresElements = true;
  static constexpr int kStores = 0;
  static constexpr bool kHasNear = false;

  JK_INLINE static C Reference(C max) { return max; }
  JK_INLINE static C Kept(C term, C /*x*/) { return term; }
};

// Forward operations read x. They subtract the maximum, so that no exponential overflows.
template <typename T, int kCount = 1>
struct ForwardOp : RowOp<T, kCount> {
  using typename RowOp<T, kCount>::C;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = true;

  JK_INLINE static C Term(C x, C, C max) { return ExpDifference<T>(x, max); }
  JK_INLINE static C NearReference(C max) { return PowerOf(max); }
  JK_INLINE static C NearTerm(C x, C power) { return ExpTimesPower(x, power); }
};

// y = exp(x - max) / sum exp(x - max)
template <typename T>
struct SoftmaxForward : ForwardOp<T> {
  using typename ForwardOp<T>::C;
  static constexpr Operation kOperation = Operation::kSoftmaxForward;
  static constexpr bool kKeepsTerm = true;
  static constexpr bool kHasNear = std::is_same_v<T, float>;

  // The common factor of fixed-shift terms cancels in the quotient.
  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>&) {
    return {of.max, C(of.sum[0]), C(1) / C(of.sum[0])};
  }
  // One Newton step rounds the quotient like a division; half types do not need it.
  JK_INLINE static C FinishTerm(C term, C, const Row<C>& row) {
    const C quotient = term * row.extra;
    if constexpr (!std::is_same_v<T, C>) return quotient;
    return quotient + (term - quotient * row.sum) * row.extra;
  }
  JK_INLINE static C Finish(C x, C unused, const Row<C>& row) {
    return FinishTerm(ForwardOp<T>::Term(x, unused, row.max), unused, row);
  }
};

// y = (x - max) - log(sum exp(x - max)); `sum` + `extra` is the logarithm
//
// A sum such as 1 + 1e-9 would lose the small term, and with it results near 0. So the terms of the
// maximum, which are exactly 1, are counted separately. Half types sum all terms: that is faster,
// and their results near 0 err by about 2^-24 (rows of more than 31 columns), or 2^-53.
template <typename T>
struct LogSoftmaxForward : ForwardOp<T, std::is_same_v<T, CpuComputeType<T>> ? 2 : 1> {
  using Base = ForwardOp<T, std::is_same_v<T, CpuComputeType<T>> ? 2 : 1>;
  using typename Base::C;
  static constexpr Operation kOperation = Operation::kLogSoftmaxForward;
  static constexpr bool kCounts = Base::kSums == 2;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kHasNear = std::is_same_v<T, float>;

  // The count of maxima in this term, 1 or 0; clears the term if it is 1.
  JK_INLINE static C SecondTerm(C& term, C, bool is_of_max) {
    term = is_of_max ? C(0) : term;
    return is_of_max ? C(1) : C(0);
  }
  JK_INLINE static double LogSum(const auto& of) {
    if constexpr (Base::kSums == 2) {
      return Log1p(of.sum[0] / of.of_max + (of.sum[1] - 1));
    } else {
      return Log(of.sum[0]);
    }
  }
  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>&) {
    const double log_sum = LogSum(of);
    return {of.max, C(log_sum), C(log_sum - double(C(log_sum)))};
  }
  JK_INLINE static C Finish(C x, C, const Row<C>& row) {
    const C difference = x - row.max;
    if constexpr (!std::is_same_v<T, C>) return difference - row.sum;
    const C error = DifferenceError(x, row.max, difference) - row.extra;
    return (difference - row.sum) + error;
  }
};

// Gradients (and tangents) that read the output y and a cotangent (tangent), and need one sum.
// Those of log-softmax in half types read x instead (LinearOpOfX).
template <typename T>
struct LinearOp : RowOp<T> {
  using typename RowOp<T>::C;
  static constexpr int kInputs = 2;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;

  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>&) {
    return {C(0), C(of.sum[0]), C(0)};
  }
};

// dx = y * (dy - sum(dy * y)). The Jacobian is symmetric, so the same formula maps the tangent of x
// to the tangent of y.
template <typename T>
struct SoftmaxGrad : LinearOp<T> {
  using typename LinearOp<T>::C;
  static constexpr Operation kOperation = Operation::kSoftmaxGrad;
  JK_INLINE static C Term(C y, C dy, C) { return y * dy; }
  JK_INLINE static C Finish(C y, C dy, const Row<C>& row) { return y * (dy - row.sum); }
};

// dx = dy - exp(y) * sum(dy), where y <= 0, as log-softmax returns it
template <typename T>
struct LogSoftmaxGradOfY : LinearOp<T> {
  using typename LinearOp<T>::C;
  static constexpr Operation kOperation = Operation::kLogSoftmaxGrad;
  JK_INLINE static C Term(C, C dy, C) { return dy; }
  JK_INLINE static C Finish(C y, C dy, const Row<C>& row) {
    return dy - Exp<true>(y, C(0)) * row.sum;
  }
};

// dy = dx - sum(exp(y) * dx), the transpose of LogSoftmaxGradOfY.
template <typename T>
struct LogSoftmaxJvpOfY : LinearOp<T> {
  using typename LinearOp<T>::C;
  static constexpr Operation kOperation = Operation::kLogSoftmaxJvp;
  JK_INLINE static C Term(C y, C dx, C) { return Exp<true>(y, C(0)) * dx; }
  JK_INLINE static C Finish(C, C dx, const Row<C>& row) { return dx - row.sum; }
};

// Gradients that read x, for half types: their y is rounded, and exp(y) would multiply that error
// by |y|. Float types have a more exact y, so they save a maximum and a sum.
template <typename T>
struct LinearOpOfX : ForwardOp<T, 2> {
  using typename ForwardOp<T, 2>::C;
  static constexpr bool kCounts = true;
  static constexpr int kInputs = 2;

  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>&) {
    return {of.max, C(of.sum[1] / of.sum[0]), C(0)};
  }
};

// dx = dy - exp(x - max) * (sum(dy) / sum exp(x - max))
template <typename T>
struct LogSoftmaxGradOfX : LinearOpOfX<T> {
  using typename LinearOpOfX<T>::C;
  static constexpr Operation kOperation = Operation::kLogSoftmaxGrad;
  static constexpr bool kKeepsTerm = true;
  JK_INLINE static C SecondTerm(C, C dy, bool /*is_of_max*/) { return dy; }
  JK_INLINE static C FinishTerm(C term, C dy, const Row<C>& row) { return dy - term * row.sum; }
  JK_INLINE static C Finish(C x, C dy, const Row<C>& row) {
    return FinishTerm(LinearOpOfX<T>::Term(x, dy, row.max), dy, row);
  }
};

// dy = dx - sum(exp(x - max) * dx) / sum exp(x - max), the transpose of LogSoftmaxGradOfX
template <typename T>
struct LogSoftmaxJvpOfX : LinearOpOfX<T> {
  using typename LinearOpOfX<T>::C;
  static constexpr Operation kOperation = Operation::kLogSoftmaxJvp;
  static constexpr bool kKeepsTerm = false;
  JK_INLINE static C SecondTerm(C term, C dx, bool /*is_of_max*/) { return term * dx; }
  JK_INLINE static C Finish(C, C dx, const Row<C>& row) { return dx - row.sum; }
};

template <typename T>
using LogSoftmaxGrad = std::conditional_t<std::is_same_v<T, CpuComputeType<T>>,
                                          LogSoftmaxGradOfY<T>, LogSoftmaxGradOfX<T>>;
template <typename T>
using LogSoftmaxJvp = std::conditional_t<std::is_same_v<T, CpuComputeType<T>>, LogSoftmaxJvpOfY<T>,
                                         LogSoftmaxJvpOfX<T>>;

// The sums for log sum exp(x). Terms are relative to the maximum if it is finite, so that inf - inf
// never makes a NaN. A row of -inf only has the sum 0 and the derivative 0.
template <typename T, int kCount = 1>
struct LogSumExpOp : RowOp<T, kCount> {
  using typename RowOp<T, kCount>::C;
  static constexpr bool kUsesMax = true;

  JK_INLINE static C Reference(C max) {
    constexpr C kLargest = std::numeric_limits<C>::max();
    return max == -kInf<C> ? C(0) : max > kLargest ? kLargest : max;
  }
  JK_INLINE static C Term(C x, C, C max) {
    return x == kInf<C> ? kInf<C> : ExpDifference<T>(x, max);
  }
};

// y = max + log(sum exp(x - max)), one per row
template <typename T>
struct LogSumExpForward : LogSumExpOp<T> {
  using typename LogSumExpOp<T>::C;
  static constexpr Operation kOperation = Operation::kLogSumExpForward;
  static constexpr int kInputs = 1;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kStoresElements = false;
  static constexpr int kStores = 1;

  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>&) {
    const double sum = of.sum[0];
    const double log_sum = sum > 0 && sum < kInf<double> ? Log(sum)
                           : sum == 0                    ? -kInf<double>
                                                         : sum;
    return {of.max, C(of.max + log_sum), C(0)};
  }
  JK_INLINE static C Result(C sum) { return sum; }
};

// dx = dy * exp(x - max) / sum exp(x - max), with one dy per row
template <typename T>
struct LogSumExpGrad : LogSumExpOp<T> {
  using typename LogSumExpOp<T>::C;
  static constexpr Operation kOperation = Operation::kLogSumExpGrad;
  static constexpr int kInputs = 1;
  static constexpr bool kKeepsTerm = true;
  static constexpr int kTakes = 1;

  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>& given) {
    return {of.max, of.sum[0] == 0 ? C(0) : C(given.taken[0] / of.sum[0]), C(0)};
  }
  JK_INLINE static C FinishTerm(C term, C, const Row<C>& row) { return term * row.sum; }
  JK_INLINE static C Finish(C x, C unused, const Row<C>& row) {
    return FinishTerm(LogSumExpOp<T>::Term(x, unused, row.max), unused, row);
  }
};

// dy = sum(exp(x - max) * dx) / sum exp(x - max), one per row: the transpose of LogSumExpGrad
template <typename T>
struct LogSumExpJvp : LogSumExpOp<T, 2> {
  using typename LogSumExpOp<T, 2>::C;
  static constexpr bool kCounts = !std::is_same_v<T, C>;
  static constexpr Operation kOperation = Operation::kLogSumExpJvp;
  static constexpr int kInputs = 2;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kStoresElements = false;
  static constexpr int kStores = 1;

  JK_INLINE static C SecondTerm(C term, C dx, bool /*is_of_max*/) { return term * dx; }
  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>&) {
    return {of.max, of.sum[0] == 0 ? C(0) : C(of.sum[1] / of.sum[0]), C(0)};
  }
  JK_INLINE static C Result(C sum) { return sum; }
};

// RMSNorm, with r = 1 / sqrt(mean(x^2) + epsilon) as the constant `sum` of a row. In derivatives
// `extra` is r^2 mean(x t), where t is the tangent of x or scale * dy.
template <typename T, int kCount>
struct RmsNormOp : RowOp<T, kCount> {
  using typename RowOp<T, kCount>::C;
  static constexpr int kInputs = kCount;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesColumn = true;
  static constexpr bool kAverages = true;

  JK_INLINE static C Term(C x, C, C) { return x * x; }
  JK_INLINE static Row<C> MakeRow(const auto& of, const RowInputs<C>& given) {
    const double square = 1 / (of.sum[0] / given.cols + given.epsilon);
    return {C(0), C(__builtin_sqrt(square)), C(square * (of.sum[kCount - 1] / given.cols))};
  }
};

// y = scale * r x
template <typename T>
struct RmsNormForward : RmsNormOp<T, 1> {
  using typename RmsNormOp<T, 1>::C;
  static constexpr Operation kOperation = Operation::kRmsNormForward;
  JK_INLINE static C Finish(C x, C, C scale, const Row<C>& row) { return x * row.sum * scale; }
};

// dx = r (scale dy - x r^2 mean(x scale dy))
template <typename T>
struct RmsNormGrad : RmsNormOp<T, 2> {
  using typename RmsNormOp<T, 2>::C;
  static constexpr Operation kOperation = Operation::kRmsNormGrad;
  JK_INLINE static C SecondTerm(C x, C dy, C scale) { return x * (scale * dy); }
  JK_INLINE static C Finish(C x, C dy, C scale, const Row<C>& row) {
    return row.sum * (scale * dy - x * row.extra);
  }
};

// dy = scale * r (dx - x r^2 mean(x dx)), the transpose of RmsNormGrad
template <typename T>
struct RmsNormJvp : RmsNormOp<T, 2> {
  using typename RmsNormOp<T, 2>::C;
  static constexpr Operation kOperation = Operation::kRmsNormJvp;
  JK_INLINE static C SecondTerm(C x, C dx, C) { return x * dx; }
  JK_INLINE static C Finish(C x, C dx, C scale, const Row<C>& row) {
    return scale * (row.sum * (dx - x * row.extra));
  }
};

// The operations above on elements of type T.
template <typename T>
using RowOps =
    OperationList<SoftmaxForward<T>, LogSoftmaxForward<T>, SoftmaxGrad<T>, LogSoftmaxGrad<T>,
                  LogSoftmaxJvp<T>, LogSumExpForward<T>, LogSumExpGrad<T>, LogSumExpJvp<T>,
                  RmsNormForward<T>, RmsNormGrad<T>, RmsNormJvp<T>>;

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_OPS_H_
