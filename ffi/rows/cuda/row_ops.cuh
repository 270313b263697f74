// Row operations: what each one loads, reduces and stores. An operation does not know which tier
// runs it.
//
// A row operation on storage type T (compute type C) is a struct; each kernel gets one instance.
// Its members:
//   kOperation   its entry in the table of operations.h, which must agree with the constants below
//   kInputs      number of input arrays, 1 or 2: x; y and dy; scores and bias; x and dx
//   kUsesMax     whether the sums need the row's maximum
//   kKeepsTerm   whether the result follows from the summand, so that a tier may keep it instead of
//                the input
//   kSharesRows  whether a row has the same offset in all inputs
//   kOnlyLong    whether it is compiled for long rows only: `block_smem` and `cluster`, or
//                OneReadKernel
//   kHides       whether a row has hidden elements; View and MaskWord describe them, as in
//                row_ops_masked.cuh
//   kSums        number of sums per row; 0 if Row needs the per-row inputs only
//   kKeepsRest   whether sums are compensated when parts of a row are combined
//   kTakesScales whether a row may have a temperature: `scale` applies it to a loaded element, and
//                Value, Term and Finish get the result. Row applies GivenRow::unit
//   kCaps        whether it has a soft cap too; FinishPacks applies the derivative of that
//   kMayAlign    whether it is compiled for aligned rows too; other kernels serve them as well
//   kTakesLabel  whether it reads a label per row; Row::other then gives the columns with a special
//                result, and that result
//   kTakesColumn whether it reads a number per column; Term, SecondTerm and Finish get it after the
//                inputs
//   kAverages    whether Row takes means of the terms; it gets the columns, and an epsilon as a
//                scalar, in a GivenRow
//   kTakes       number of scalars it reads per row; Row gets them and the label as a GivenRow
//   kStoresElements whether it stores a result per element; if not, it has no Finish
//   kStores      number of scalars it stores per row: Row::scalars
//   Fill(i)      the padding value of input i, for hidden elements and those outside the row; it is
//                neutral for the maximum and the sums
//   Value        the value whose maximum is taken; with one input, it must not decrease with that
//                input
//   Reference    maps the row's maximum to the shift that Term gets as `max`
//   Term         the summand of the first sum, from one element of each input and the shift
//   SecondTerm   the summand of the second sum, from Term and the inputs; it may modify the term
//   AddMore      for more than two sums: adds to all sums but the first, and may modify the terms
//   Rescale      makes the sums relative to a larger maximum, given exp(smaller - larger) and
//                smaller - larger
//   Row          the constants of a row, computed once from its statistics
//   Finish       one element of the result from the inputs; FinishTerm from a kept summand
//   LedRow       if IsLed: the row constants that warp 0 computes; AtLabel() is the result at the
//                label
//   Columns      if IsLed: the part of LedRow that Finish needs
// ffi/README.md describes how to add one.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_

#include "core/reduce.cuh"
#include "rows/call.h"
#include "rows/operations.h"

namespace jaxkernels {

// Statistics of a row or a part of it: its maximum, and sums of terms relative to that maximum. The
// blocks of a cluster exchange the struct in words of 8 bytes. Sums of parts are added as Exact.
template <typename C, int kCount, bool kKeepsRest>
struct alignas(8) Statistics {
  using Exact = C;
  static constexpr int kSums = kCount;

  C max;  // 0 if the operation needs no maximum
  C sum[kCount];

  __device__ Exact ExactSum(int s) const { return sum[s]; }
  __device__ void SetSum(int s, Exact exact) { sum[s] = exact; }
  __device__ void SetSums(const Exact (&exact)[kCount]) {
#pragma unroll
    for (int s = 0; s < kCount; ++s) SetSum(s, exact[s]);
  }
};

// Specialisation with compensated sums: the last additions, of the largest parts, lose most, and
// that error affects all results of the row. Largest error of 27 rows of 24576 to 196608 columns,
// in 2^-24 of the result, without and with compensation:
// H200 f32 fwd normal numbers: 5.1, 3.6
// H200 f32 fwd maxima of the blocks of a row differ by 4: 5.6, 4.1
// H200 f32 fwd the same plus 1000: 5.4, 3.9
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

// Defaults for the members of an operation.
template <typename T, int kCount = 1, bool kHasRest = false>
struct RowOp {
  using Storage = T;
  using C = ComputeType<T>;
  using Found = Statistics<C, kCount, kHasRest>;
  static constexpr int kSums = kCount;
  static constexpr bool kKeepsRest = kHasRest;
  static constexpr bool kTakesLabel = false;
  static constexpr bool kTakesScales = false;
  static constexpr bool kCaps = false;
  static constexpr bool kMayAlign = true;
  static constexpr bool kTakesColumn = false;
  static constexpr bool kAverages = false;
  static constexpr int kTakes = 0;
  static constexpr bool kStoresElements = true;
  static constexpr int kStores = 0;
  static constexpr bool kHides = false;
  static constexpr bool kSharesRows = true;
  static constexpr bool kOnlyLong = false;
  struct View {};
  struct MaskWord {};
  struct Scale {};
  struct ColumnPlace {};

  __device__ static void Rescale(C (&sum)[kCount], C factor, C /*difference*/) {
#pragma unroll
    for (C& one : sum) one *= factor;
  }
};

// Operations that read x. They subtract the maximum, so that no exponential overflows.
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
    // The sum is zero only if all elements are hidden; then the results are zero too.
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
    if constexpr (kIsHalf<T>) {  // divides within the exponent
      return FastExp2(fma(in[0] - row.max, kLog2E, -row.log2_sum));
    } else {
      return FinishTerm(SoftmaxForward::Term(in, row.max), row);
    }
  }
};

// y = (x - max) - log(sum exp(x - max))
//
// A sum such as 1 + 1e-9 would lose the small term, and with it results near 0. So the terms of the
// maximum, which are exactly 1, are counted separately. Half types sum all terms: that is faster,
// and their results near 0 err by about 2^-24.
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
  // The count of maxima in this term, 1 or 0; subtracts it from the term.
  __device__ static C SecondTerm(C& term, const C (&)[1]) {
    const C count = term == C(1) ? C(1) : C(0);
    term -= count;
    return count;
  }
  // Terms of the maximum become ordinary terms if there is a larger maximum.
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

// Gradients (and tangents) that read the output y and a cotangent (tangent), and need one sum.
// Those of log-softmax in half types read x instead (LinearOpOfX).
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

// dx = y * (dy - sum(dy * y)). The Jacobian is symmetric, so the same formula maps the tangent of x
// to the tangent of y.
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

// Gradients that read x, for half types: their y is rounded, and exp(y) would multiply that error
// by |y|. Float types have a more exact y, so they save a maximum and a sum. Terms of half types
// take more registers than x, so they are recomputed instead of kept.
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

// dy = dx - sum(exp(x - max) * dx) / sum exp(x - max), the transpose of LogSoftmaxGradOfX
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

// The sums for log sum exp(x). Terms are relative to the maximum if it is finite, so that inf - inf
// never makes a NaN. A row of -inf only has the sum 0 and the derivative 0.
//
// No term is a result, and terms far below the maximum, whose exponents are least exact, weigh
// least. So float32 uses the hardware's exponential, as half types do.
template <typename T, int kArrays = 1, int kCount = 1>
struct LogSumExpOp : ForwardOp<T, kArrays, kCount> {
  using typename ForwardOp<T, kArrays, kCount>::C;

  __device__ static C Reference(C max) {
    return max == -kInfinity<C> ? C(0) : fmin(max, kLargestFinite<C>);
  }
  __device__ static C Term(const C (&in)[kArrays], C max) { return FastExp(in[0] - max); }
};

// y = max + log(sum exp(x - max)), one per row
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

// dx = dy * exp(x - max) / sum exp(x - max), with one dy per row
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

// dy = sum(exp(x - max) * dx) / sum exp(x - max), one per row: the transpose of LogSumExpGrad
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

// RMSNorm. The first input is x, the last value of an element the scale of its column.
template <typename T, int kArrays>
struct RmsNormOp : RowOp<T, kArrays> {
  using typename RowOp<T, kArrays>::C;
  using typename RowOp<T, kArrays>::Found;
  static constexpr int kInputs = kArrays;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesColumn = true;
  static constexpr bool kAverages = true;
  // The numbers of the column that belong to a pack.
  struct ColumnPlace {
    int first;   // column of the first element; may lie outside of the row
    bool whole;  // whether all or none of the pack's columns exist, and they begin at a pack
  };

  RowColumn column;
  int cols;
  C epsilon;

  RmsNormOp() = default;
  explicit RmsNormOp(const RowCall& call)
      : column(call.column),
        cols(static_cast<int>(call.arrays.cols)),
        epsilon(static_cast<C>(call.epsilon)) {}

  // r = 1 / sqrt(mean(x^2) + epsilon); in derivatives also r^2 mean(x t), where t is the tangent of
  // x or scale * dy.
  struct Row {
    C r, product;
    template <typename Given>
    __device__ Row(const Found& of, const Given& given) {
      const C cols = static_cast<C>(given.cols);
      const C square = C(1) / (of.sum[0] / cols + given.scalar[0]);
      r = sqrt(square), product = square * (of.sum[kArrays - 1] / cols);
    }
  };

  __device__ static C Fill(int) { return C(0); }
  __device__ static C Term(const C (&in)[kArrays + 1], C) { return in[0] * in[0]; }
};

// y = scale * r x
template <typename T>
struct RmsNormForward : RmsNormOp<T, 1> {
  using typename RmsNormOp<T, 1>::C;
  using typename RmsNormOp<T, 1>::Row;
  using RmsNormOp<T, 1>::RmsNormOp;
  static constexpr Operation kOperation = Operation::kRmsNormForward;
  __device__ static C Finish(const C (&in)[2], const Row& row) { return in[0] * row.r * in[1]; }
};

// dx = r (scale dy - x r^2 mean(x scale dy))
template <typename T>
struct RmsNormGrad : RmsNormOp<T, 2> {
  using typename RmsNormOp<T, 2>::C;
  using typename RmsNormOp<T, 2>::Row;
  using RmsNormOp<T, 2>::RmsNormOp;
  static constexpr Operation kOperation = Operation::kRmsNormGrad;
  __device__ static C SecondTerm(C, const C (&in)[3]) { return in[0] * (in[2] * in[1]); }
  __device__ static C Finish(const C (&in)[3], const Row& row) {
    return row.r * (in[2] * in[1] - in[0] * row.product);
  }
};

// dy = scale * r (dx - x r^2 mean(x dx)), the transpose of RmsNormGrad
template <typename T>
struct RmsNormJvp : RmsNormOp<T, 2> {
  using typename RmsNormOp<T, 2>::C;
  using typename RmsNormOp<T, 2>::Row;
  using RmsNormOp<T, 2>::RmsNormOp;
  static constexpr Operation kOperation = Operation::kRmsNormJvp;
  __device__ static C SecondTerm(C, const C (&in)[3]) { return in[0] * in[1]; }
  __device__ static C Finish(const C (&in)[3], const Row& row) {
    return in[2] * (row.r * (in[1] - in[0] * row.product));
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_OPS_CUH_
