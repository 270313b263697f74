// The row operations: what each one loads, reduces and stores. No operation knows which tier runs
// it.
//
// A row operation on storage type T (compute type C) is a struct, of which a kernel gets one, with
//   kOperation   its row of the table in operations.h, which says the constants below as well
//   kInputs      arrays it reads, 1 or 2: x; y and dy; scores and bias; x and dx
//   kUsesMax     whether the maximum of the row is needed before the sum
//   kKeepsTerm   whether the summand is all that the result needs, so that a tier may keep it in
//                place of the input
//   kSharesRows  whether all inputs have their rows at the same place
//   kOnlyLong    whether it is for long rows alone: for `block_smem` and `cluster`, or to read in
//                leaves
//   kHides       whether some elements of a row are hidden; then View and MaskWord say which, as in
//                row_ops_masked.cuh
//   kSums        numbers that a row sums side by side; none: Row follows from what the row is given
//   kKeepsRest   whether sums keep what they lose to rounding where parts of a row meet
//   kTakesLabel  whether it reads a column for each row; Row::other then says which columns have
//                another result, and what it is
//   kTakes       numbers that it reads for each row; Row gets them and the label as a GivenRow
//   kStoresElements whether it has a result for each element; if not there is no Finish
//   Result       the storage type of these: T, or one of half types for T float
//   kStores      numbers that it stores for each row: Row::scalars
//   Fill(i)      the value that stands for elements of input i outside the row and for hidden ones:
//                it changes neither maximum nor sums
//   Value        of which the maximum is taken; it rises with the input, if there is one only
//   Reference    from the row's maximum to what Term gets as `max`
//   Term         one summand of the row's sum, from one element of each input and the maximum
//   SecondTerm   of the second sum, from the first and the inputs; it may change the first
//   AddMore      of more than two sums: adds to all but the first, and may change the terms
//   Rescale      makes the sums relative to a larger maximum, given exp(smaller - larger) and
//                smaller - larger
//   Row          the constants of a row, made once from its statistics
//   Finish       one element of the result from the inputs; FinishTerm the same from a kept summand
//   LedRow       if IsLed: what the first warp of a block makes of a row; its AtLabel() is the
//                result at the label
//   Columns      if IsLed: the part of LedRow that Finish takes
// How to add one: ffi/README.md.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_

#include "core/reduce.cuh"
#include "rows/operations.h"

namespace jaxkernels {

// What a row, or a part of one, is reduced to: its maximum, and sums of terms relative to it. Its
// bytes are what blocks of a cluster exchange, in words of eight. Sums of parts meet as Exact.
template <typename C, int kCount, bool kKeepsRest>
struct alignas(8) Statistics {
  using Exact = C;
  static constexpr int kSums = kCount;

  C max;  // 0 of operations that need none
  C sum[kCount];

  __device__ Exact ExactSum(int s) const { return sum[s]; }
  __device__ void SetSum(int s, Exact exact) { sum[s] = exact; }
  __device__ void SetSums(const Exact (&exact)[kCount]) {
#pragma unroll
    for (int s = 0; s < kCount; ++s) SetSum(s, exact[s]);
  }
};

// The same where each sum keeps what it lost to rounding: the last additions, of the largest parts,
// lose most, and all results of the row inherit it. Largest error of 27 rows of 24576 to 196608
// columns, in 2^-24 of the result, without and with the rests:
// H200 f32 fwd normal numbers: 5.1, 3.6
// H200 f32 fwd blocks of a row have maxima 4 apart: 5.6, 4.1
// H200 f32 fwd the same beside 1000: 5.4, 3.9
template <int kCount>
struct alignas(8) Statistics<float, kCount, true> {
  using Exact = SumWithRest;
  static constexpr int kSums = kCount;

  float max;
  float sum[kCount], rest[kCount];

  __device__ Exact ExactSum(int s) const { return {sum[s], rest[s]}; }
  __device__ void SetSum(int s, Exact exact) { sum[s] = exact.sum, rest[s] = exact.rest; }
  __device__ void SetSums(const Exact (&exact)[kCount]) {
#pragma unroll
    for (int s = 0; s < kCount; ++s) SetSum(s, exact[s]);
  }
};

// What an operation is unless it says otherwise.
template <typename T, int kCount = 1, bool kHasRest = false>
struct RowOp {
  using Storage = T;
  using Result = T;
  using C = ComputeType<T>;
  using Found = Statistics<C, kCount, kHasRest>;
  static constexpr int kSums = kCount;
  static constexpr bool kKeepsRest = kHasRest;
  static constexpr bool kTakesLabel = false;
  static constexpr int kTakes = 0;
  static constexpr bool kStoresElements = true;
  static constexpr int kStores = 0;
  static constexpr bool kHides = false;
  static constexpr bool kSharesRows = true;
  static constexpr bool kOnlyLong = false;
  struct View {};
  struct MaskWord {};

  __device__ static void Rescale(C (&sum)[kCount], C factor, C /*difference*/) {
#pragma unroll
    for (C& one : sum) one *= factor;
  }
};

// Operations that read x need its maximum, so that no exponential overflows.
template <typename T, int kArrays = 1, int kCount = 1, bool kHasRest = false>
struct ForwardOp : RowOp<T, kCount, kHasRest> {
  using typename RowOp<T, kCount, kHasRest>::C;
  static constexpr int kInputs = kArrays;
  static constexpr bool kUsesMax = true;

  __device__ static C Fill(int input) { return input == 0 ? -kInfinity<C> : C(0); }
  __device__ static C Value(const C (&in)[kArrays]) { return in[0]; }
  __device__ static C Reference(C max) { return max; }
  __device__ static C Term(const C (&in)[kArrays], C max) { return ExpDifference<T>(in[0], max); }
};

// y = exp(x - max) / sum exp(x - max)
template <typename T>
struct SoftmaxForward : ForwardOp<T, 1, 1, std::is_same_v<T, float>> {
  using Base = ForwardOp<T, 1, 1, std::is_same_v<T, float>>;
  using typename Base::C;
  using typename Base::Found;
  static constexpr Operation kOperation = Operation::kSoftmaxForward;
  static constexpr bool kKeepsTerm = true;

  struct Row {
    C max, sum;
    Reciprocal<T> inverse;
    C log2_sum;
    // The sum is zero only if all is hidden; then so are the results.
    __device__ explicit Row(const Found& of)
        : max(of.max), sum(of.sum[0]), log2_sum(sum == C(0) ? C(0) : log2(sum)) {
      if constexpr (Base::kKeepsRest) {
        if (sum != C(0)) inverse = Reciprocal<T>(sum, of.rest[0]);
      } else {
        if (sum != C(0)) inverse = Reciprocal<T>(sum);
      }
    }
  };

  __device__ static C FinishTerm(C term, const Row& row) { return row.inverse.Times(term); }
  __device__ static C Finish(const C (&in)[1], const Row& row) {
    if constexpr (kIsHalf<T>) {  // the division within the exponent
      return FastExp2(fma(in[0] - row.max, kLog2E, -row.log2_sum));
    } else {
      return FinishTerm(SoftmaxForward::Term(in, row.max), row);
    }
  }
};

// y = (x - max) - log(sum exp(x - max))
//
// In 1 + 1e-9 the small term would be lost, and with it results near 0. So terms of the maximum,
// which are exactly 1, are counted apart. Half types sum all terms: it is faster, and their results
// near 0 err by about 2^-24.
template <typename T>
struct LogSoftmaxForward : ForwardOp<T, 1, kIsHalf<T> ? 1 : 2> {
  using Base = ForwardOp<T, 1, kIsHalf<T> ? 1 : 2>;
  using typename Base::C;
  using typename Base::Found;
  static constexpr Operation kOperation = Operation::kLogSoftmaxForward;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kCounts = Base::kSums == 2;

  struct Row {
    C max, log_sum;
    __device__ explicit Row(const Found& of) : max(of.max), log_sum(LogSum(of)) {}
  };

  __device__ static C LogSum(const Found& of) {
    if constexpr (kCounts) {
      return log1p(of.sum[0] + (of.sum[1] - 1));
    } else {
      return log(of.sum[0]);
    }
  }
  // How many terms of the maximum this is, 1 or 0.
  __device__ static C SecondTerm(C& term, const C (&)[1]) {
    const C count = term == C(1) ? C(1) : C(0);
    term -= count;
    return count;
  }
  // Terms of a maximum join the others where there is a larger one.
  __device__ static void Rescale(C (&sum)[Base::kSums], C factor, C /*difference*/) {
    if constexpr (kCounts) {
      const C joining = factor == C(1) ? C(0) : sum[1];
      sum[0] += joining;
      sum[1] -= joining;
    }
    sum[0] *= factor;
  }

  __device__ static C Finish(const C (&in)[1], const Row& row) {
    const C difference = in[0] - row.max;
    const C y = difference - row.log_sum;
    return difference > -kInfinity<C> ? y + DifferenceError<T>(in[0], row.max, difference) : y;
  }
};

// Gradients (and tangents) read the output y and a cotangent (tangent), and need one sum; those of
// log-softmax of half types read x.
template <typename T>
struct LinearOp : RowOp<T> {
  using typename RowOp<T>::C;
  using typename RowOp<T>::Found;
  static constexpr int kInputs = 2;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;

  struct Row {
    C sum;
    __device__ explicit Row(const Found& of) : sum(of.sum[0]) {}
  };

  __device__ static C Fill(int) { return C(0); }
};

// dx = y * (dy - sum(dy * y)). The Jacobian is symmetric: from the tangent of x this makes the
// tangent of y.
template <typename T>
struct SoftmaxGrad : LinearOp<T> {
  using typename LinearOp<T>::C;
  using typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kSoftmaxGrad;
  __device__ static C Term(const C (&in)[2], C) { return in[0] * in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) { return in[0] * (in[1] - row.sum); }
};

// dx = dy - exp(y) * sum(dy)
template <typename T>
struct LogSoftmaxGradOfY : LinearOp<T> {
  using typename LinearOp<T>::C;
  using typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxGrad;
  __device__ static C Term(const C (&in)[2], C) { return in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) {
    return fma(-exp(in[0]), row.sum, in[1]);
  }
};

// dy = dx - sum(exp(y) * dx), the transpose of LogSoftmaxGradOfY.
template <typename T>
struct LogSoftmaxJvpOfY : LinearOp<T> {
  using typename LinearOp<T>::C;
  using typename LinearOp<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxJvp;
  __device__ static C Term(const C (&in)[2], C) { return exp(in[0]) * in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) { return in[1] - row.sum; }
};

// The same from x, of half types: their y is rounded, and exp(y) would err by |y| times that. Float
// types, whose y errs less, are spared a maximum and a sum. Terms of half types take more registers
// than x: they are made again instead of kept.
template <typename T>
struct LinearOpOfX : ForwardOp<T, 2, 2> {
  using typename ForwardOp<T, 2, 2>::C;
  using typename ForwardOp<T, 2, 2>::Found;
  static constexpr bool kKeepsTerm = false;

  struct Row {
    C max, quotient;
    __device__ explicit Row(const Found& of) : max(of.max), quotient(of.sum[1] / of.sum[0]) {}
  };
};

// dx = dy - exp(x - max) * (sum(dy) / sum exp(x - max))
template <typename T>
struct LogSoftmaxGradOfX : LinearOpOfX<T> {
  using typename LinearOpOfX<T>::C;
  using typename LinearOpOfX<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxGrad;

  __device__ static C SecondTerm(C, const C (&in)[2]) { return in[1]; }
  __device__ static void Rescale(C (&sum)[2], C factor, C /*difference*/) { sum[0] *= factor; }
  __device__ static C Finish(const C (&in)[2], const Row& row) {
    return fma(-LinearOpOfX<T>::Term(in, row.max), row.quotient, in[1]);
  }
};

// dy = dx - sum(exp(x - max) * dx) / sum exp(x - max), its transpose
template <typename T>
struct LogSoftmaxJvpOfX : LinearOpOfX<T> {
  using typename LinearOpOfX<T>::C;
  using typename LinearOpOfX<T>::Row;
  static constexpr Operation kOperation = Operation::kLogSoftmaxJvp;

  __device__ static C SecondTerm(C term, const C (&in)[2]) { return term * in[1]; }
  __device__ static C Finish(const C (&in)[2], const Row& row) { return in[1] - row.quotient; }
};

template <typename T>
using LogSoftmaxGrad = std::conditional_t<kIsHalf<T>, LogSoftmaxGradOfX<T>, LogSoftmaxGradOfY<T>>;
template <typename T>
using LogSoftmaxJvp = std::conditional_t<kIsHalf<T>, LogSoftmaxJvpOfX<T>, LogSoftmaxJvpOfY<T>>;

// The sums behind log sum exp(x). Terms are relative to the maximum where it is finite: no
// inf - inf makes a NaN. A row of -inf alone has the sum 0, and a derivative of 0.
//
// No term is a result, and the far ones, whose exponents are the least exact, weigh least: float32
// terms are the hardware's, as those of half types are.
template <typename T, int kArrays = 1, int kCount = 1>
struct LogSumExpOp : ForwardOp<T, kArrays, kCount> {
  using typename ForwardOp<T, kArrays, kCount>::C;

  __device__ static C Reference(C max) {
    return max == -kInfinity<C> ? C(0) : fmin(max, kLargestFinite<C>);
  }
  __device__ static C Term(const C (&in)[kArrays], C max) { return FastExp(in[0] - max); }
};

// y = max + log(sum exp(x - max)), for each row
template <typename T>
struct LogSumExpForward : LogSumExpOp<T> {
  using typename LogSumExpOp<T>::C;
  using typename LogSumExpOp<T>::Found;
  static constexpr Operation kOperation = Operation::kLogSumExpForward;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kStoresElements = false;
  static constexpr int kStores = 1;

  struct Row {
    C scalars[1];
    __device__ explicit Row(const Found& of) : scalars{of.max + log(of.sum[0])} {}
  };
};

// dx = dy * exp(x - max) / sum exp(x - max), with a dy for each row
template <typename T>
struct LogSumExpGrad : LogSumExpOp<T> {
  using typename LogSumExpOp<T>::C;
  using typename LogSumExpOp<T>::Found;
  static constexpr Operation kOperation = Operation::kLogSumExpGrad;
  static constexpr bool kKeepsTerm = true;
  static constexpr int kTakes = 1;

  struct Row {
    C max, factor;
    template <typename Given>
    __device__ Row(const Found& of, const Given& given)
        : max(of.max), factor(of.sum[0] == C(0) ? C(0) : given.scalar[0] / of.sum[0]) {}
  };

  __device__ static C Term(const C (&in)[1], C max) { return ExpDifference<T>(in[0], max); }
  __device__ static C FinishTerm(C term, const Row& row) { return term * row.factor; }
  __device__ static C Finish(const C (&in)[1], const Row& row) {
    return FinishTerm(Term(in, row.max), row);
  }
};

// dy = sum(exp(x - max) * dx) / sum exp(x - max), for each row: the transpose of LogSumExpGrad
template <typename T>
struct LogSumExpJvp : LogSumExpOp<T, 2, 2> {
  using typename LogSumExpOp<T, 2, 2>::C;
  using typename LogSumExpOp<T, 2, 2>::Found;
  static constexpr Operation kOperation = Operation::kLogSumExpJvp;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kStoresElements = false;
  static constexpr int kStores = 1;

  struct Row {
    C scalars[1];
    __device__ explicit Row(const Found& of)
        : scalars{of.sum[0] == C(0) ? C(0) : of.sum[1] / of.sum[0]} {}
  };

  __device__ static C SecondTerm(C term, const C (&in)[2]) { return term * in[1]; }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_
