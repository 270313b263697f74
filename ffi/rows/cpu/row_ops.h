// The row operations on the CPU: what each one reduces and stores. No operation knows how rows are
// walked; the drivers in row_drivers.h know nothing else of an operation.
// ffi/rows/cuda/row_ops.cuh says the same for CUDA.
//
// A row operation on storage type T (compute type C) is a struct with
//   kOperation its row of the table in operations.h, which says the constants below as well
//   kInputs    arrays it reads: 1 (x) or 2 (y and dy)
//   kUsesMax   whether the maximum of the row is needed before the sum
//   kKeepsTerm whether the summand is all that the result needs; a driver may then keep it in place
//              of the result until the sum is known
//   Term       one summand of the row's sum, from one element of each input and the row's maximum
//   MakeRow    the constants of a row, made once from its maximum and sum
//   Finish     one element of the result from the inputs; FinishTerm the same from a kept summand
#ifndef JAXKERNELS_ROWS_CPU_ROW_OPS_H_
#define JAXKERNELS_ROWS_CPU_ROW_OPS_H_

#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/operations.h"

namespace jaxkernels {

// The constants of a row. `extra` belongs to the operation. One layout for all operations, so that
// a driver can keep the rows of a group in three arrays.
template <typename C>
struct RowConstants {
  C max, sum, extra;
};

// exp(x - max) for max >= x. The rounding error of x - max would cost |x - max| units in the last
// place (about 90 at the far end of float32's range). Half inputs need no such care: they differ
// exactly, or by less than they are rounded to.
template <typename T, typename C>
JK_INLINE C ExpDifference(C x, C max) {
  const C difference = x - max;
  if constexpr (std::is_same_v<T, C>) {
    return Exp<true>(difference, DifferenceError(x, max, difference));
  } else {
    return Exp<true>(difference, C(0));
  }
}

// Forward operations read x and need the maximum, so that no exponential overflows.
template <typename T>
struct ForwardOp {
  using Storage = T;
  using C = CpuComputeType<T>;
  using Row = RowConstants<C>;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = true;

  JK_INLINE static C Term(C x, C, C max) { return ExpDifference<T>(x, max); }
};

// y = exp(x - max) / sum exp(x - max)
template <typename T>
struct SoftmaxForward : ForwardOp<T> {
  using typename ForwardOp<T>::C;
  using typename ForwardOp<T>::Row;
  static constexpr Operation kOperation = Operation::kSoftmaxForward;
  static constexpr bool kKeepsTerm = true;

  JK_INLINE static Row MakeRow(C max, double sum) { return {max, C(sum), C(1) / C(sum)}; }
  // One Newton step on the quotient rounds it as a division would; half storage does not need it.
  JK_INLINE static C FinishTerm(C term, const Row& row) {
    const C quotient = term * row.extra;
    if constexpr (!std::is_same_v<T, C>) return quotient;
    return quotient + (term - quotient * row.sum) * row.extra;
  }
  JK_INLINE static C Finish(C x, C unused, const Row& row) {
    return FinishTerm(ForwardOp<T>::Term(x, unused, row.max), row);
  }
};

// y = (x - max) - log(sum exp(x - max)); the logarithm in two parts, `sum` and `extra`
template <typename T>
struct LogSoftmaxForward : ForwardOp<T> {
  using typename ForwardOp<T>::C;
  using typename ForwardOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxForward;
  static constexpr bool kKeepsTerm = false;

  JK_INLINE static Row MakeRow(C max, double sum) {
    const double log_sum = Log(sum);
    return {max, C(log_sum), C(log_sum - double(C(log_sum)))};
  }
  JK_INLINE static C Finish(C x, C, const Row& row) {
    const C difference = x - row.max;
    if constexpr (!std::is_same_v<T, C>) return difference - row.sum;
    const C error = DifferenceError(x, row.max, difference) - row.extra;
    return (difference - row.sum) + error;
  }
};

// Gradients (and tangents) read the output y and a cotangent (tangent), and need one sum.
template <typename T>
struct LinearOp {
  using Storage = T;
  using C = CpuComputeType<T>;
  using Row = RowConstants<C>;
  static constexpr int kInputs = 2;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;

  JK_INLINE static Row MakeRow(C, double sum) { return {C(0), C(sum), C(0)}; }
};

// dx = y * (dy - sum(dy * y)). The Jacobian is symmetric: a tangent of x becomes one of y likewise.
template <typename T>
struct SoftmaxGrad : LinearOp<T> {
  using typename LinearOp<T>::C;
  using typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kSoftmaxGrad;
  JK_INLINE static C Term(C y, C dy, C) { return y * dy; }
  JK_INLINE static C Finish(C y, C dy, const Row& row) { return y * (dy - row.sum); }
};

// dx = dy - exp(y) * sum(dy)
template <typename T>
struct LogSoftmaxGrad : LinearOp<T> {
  using typename LinearOp<T>::C;
  using typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxGrad;
  JK_INLINE static C Term(C, C dy, C) { return dy; }
  JK_INLINE static C Finish(C y, C dy, const Row& row) {
    return dy - Exp<false>(y, C(0)) * row.sum;
  }
};

// dy = dx - sum(exp(y) * dx), the transpose of LogSoftmaxGrad.
template <typename T>
struct LogSoftmaxJvp : LinearOp<T> {
  using typename LinearOp<T>::C;
  using typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxJvp;
  JK_INLINE static C Term(C y, C dx, C) { return Exp<false>(y, C(0)) * dx; }
  JK_INLINE static C Finish(C, C dx, const Row& row) { return dx - row.sum; }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_OPS_H_
