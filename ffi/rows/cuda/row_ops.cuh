// The row operations: what each one loads, reduces and stores. No operation knows which tier runs
// it.
//
// A row operation on storage type T (compute type C) is a struct, of which a kernel gets one, with
//   kOperation   its row of the table in operations.h, which says the constants below as well
//   kInputs      arrays it reads: 1 (x) or 2 (y and dy)
//   kUsesMax     whether the maximum of the row is needed before the sum
//   kKeepsTerm   whether the summand is all that the result needs, so that a tier may keep it in
//                place of the input
//   kSharesRows  whether all inputs have their rows at the same place
//   kHides       whether some elements of a row are hidden; then View and MaskWord say which, as in
//                row_ops_masked.cuh
//   Fill()       the value that stands for elements outside the row and for hidden ones: it changes
//                neither maximum nor sum
//   Value        of which the maximum is taken; it rises with the input, if there is one only
//   Reference    from the row's maximum to what Term gets as `max`
//   Term         one summand of the row's sum, from one element of each input and the maximum
//   Row          the constants of a row, made once from its maximum and sum
//   Finish       one element of the result from the inputs; FinishTerm the same from a kept summand
// How to add one: ffi/README.md.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_

#include "core/numeric.cuh"
#include "rows/operations.h"

namespace jaxkernels {

// Operations on whole rows.
struct WholeRows {
  static constexpr bool kHides = false;
  static constexpr bool kSharesRows = true;
  struct View {};
  struct MaskWord {};
};

// Forward operations read x and need the maximum, so that no exponential overflows.
template <typename T>
struct ForwardOp : WholeRows {
  using Storage = T;
  using C = ComputeType<T>;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = true;

  __device__ static C Fill() { return -kInfinity<C>; }
  __device__ static C Value(const C (&in)[1]) { return in[0]; }
  __device__ static C Reference(C max) { return max; }
  __device__ static C Term(const C (&in)[1], C max) { return ExpDifference<T>(in[0], max); }
};

// y = exp(x - max) / sum exp(x - max)
template <typename T>
struct SoftmaxForward : ForwardOp<T> {
  using C = ComputeType<T>;
  static constexpr Operation kOperation = Operation::kSoftmaxForward;
  static constexpr bool kKeepsTerm = true;

  struct Row {
    C max, sum, inverse, log2_sum;
    // The sum is zero only if all is hidden; then so are the results.
    __device__ Row(C max, C sum)
        : max(max),
          sum(sum),
          inverse(sum == C(0) ? C(0) : Inverse<T>(sum)),
          log2_sum(sum == C(0) ? C(0) : log2(sum)) {}
  };

  __device__ static C FinishTerm(C term, const Row& row) {
    return DivideBy<T>(term, row.sum, row.inverse);
  }
  __device__ static C Finish(const C (&in)[1], const Row& row) {
    if constexpr (kIsHalf<T>) {  // the division within the exponent
      return FastExp2(fma(in[0] - row.max, kLog2E, -row.log2_sum));
    } else {
      return FinishTerm(SoftmaxForward::Term(in, row.max), row);
    }
  }
};

// y = (x - max) - log(sum exp(x - max))
template <typename T>
struct LogSoftmaxForward : ForwardOp<T> {
  using C = ComputeType<T>;
  static constexpr Operation kOperation = Operation::kLogSoftmaxForward;
  static constexpr bool kKeepsTerm = false;

  struct Row {
    C max, log_sum;
    __device__ Row(C max, C sum) : max(max), log_sum(log(sum)) {}
  };

  __device__ static C Finish(const C (&in)[1], const Row& row) {
    const C difference = in[0] - row.max;
    const C y = difference - row.log_sum;
    return difference > -kInfinity<C> ? y + DifferenceError<T>(in[0], row.max, difference) : y;
  }
};

// Gradients (and tangents) read the output y and a cotangent (tangent), and need one sum.
template <typename T>
struct LinearOp : WholeRows {
  using Storage = T;
  using C = ComputeType<T>;
  static constexpr int kInputs = 2;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;

  struct Row {
    C sum;
    __device__ Row(C /*max*/, C sum) : sum(sum) {}
  };

  __device__ static C Fill() { return C(0); }
};

// dx = y * (dy - sum(dy * y)). The Jacobian is symmetric: from the tangent of x this makes the
// tangent of y.
template <typename T>
struct SoftmaxGrad : LinearOp<T> {
  using C = ComputeType<T>;
  using Row = typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kSoftmaxGrad;
  __device__ static C Term(const C (&in)[2], C) { return in[0] * in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) { return in[0] * (in[1] - row.sum); }
};

// dx = dy - exp(y) * sum(dy)
template <typename T>
struct LogSoftmaxGrad : LinearOp<T> {
  using C = ComputeType<T>;
  using Row = typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxGrad;
  __device__ static C Term(const C (&in)[2], C) { return in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) {
    return fma(-Exp<T>(in[0]), row.sum, in[1]);
  }
};

// dy = dx - sum(exp(y) * dx), the transpose of LogSoftmaxGrad.
template <typename T>
struct LogSoftmaxJvp : LinearOp<T> {
  using C = ComputeType<T>;
  using Row = typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxJvp;
  __device__ static C Term(const C (&in)[2], C) { return Exp<T>(in[0]) * in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) { return in[1] - row.sum; }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_
