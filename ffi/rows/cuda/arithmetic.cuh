// The arithmetic of row operations on CUDA, with the members that only kernels need.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/numeric.cuh"
#include "core/reduce.cuh"
#include "rows/call.h"
#include "rows/ops/row_op.h"

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

// The operand of an operation with a number per column.
template <typename C>
struct ColumnOperand {
  // The numbers of the column that belong to a pack.
  struct ColumnPlace {
    int first;   // column of the first element; may lie outside of the row
    bool whole;  // whether all or none of the pack's columns exist, and they begin at a pack
  };

  RowColumn column;
  int cols;
  C epsilon;

  void Take(const RowCall& call) {
    column = call.column;
    cols = static_cast<int>(call.arrays.cols);
    epsilon = static_cast<C>(call.epsilon);
  }
};
struct NoColumn {
  struct ColumnPlace {};
};

// The arithmetic on storage type T; rows/ops/row_op.h says what operations use.
template <typename T>
struct Cuda {
  using Storage = T;
  using C = ComputeType<T>;
  using Sum = C;        // the type of sums and row constants
  using OfSums = Cuda;  // the arithmetic on them
  static constexpr bool kIsHalf = jaxkernels::kIsHalf<T>;
  // Terms of half types take more registers than x, so they are recomputed.
  static constexpr bool kKeepsTermsOfHalf = false;
  static constexpr C kInfinity = std::numeric_limits<C>::infinity();
  static constexpr C kLargestFinite = std::numeric_limits<C>::max();

  // The members of an operation that only kernels need:
  //   kSharesRows  whether a row has the same offset in all inputs
  //   kOnlyLong    whether it is compiled for long rows only: `block_smem` and `cluster`, or
  //                OneReadKernel
  //   kHides       whether a row of scores has hidden elements, whose result is Hidden
  //   VisibleOf    with kHides or a mask: the visible columns of a row
  //   MaskWord     with a mask: the mask of a pack (row_masks.cuh)
  //   kKeepsRest   whether sums are compensated when parts of a row are combined
  //   kTakesScales whether a row may have a temperature: `scale` (a Scale) applies it to a loaded
  //                element; Value, Term and Finish get the result. MakeRow applies GivenRow::unit
  //   kCaps        whether it has a soft cap too; FinishPacks multiplies results by the cap's
  //                derivative, except Row::other, which contains it
  //   Labelled     with a soft cap and without sums: the element at the label, a row scalar
  //   kMayAlign    whether it is compiled for aligned rows too; other kernels serve them as well
  //   Found        the statistics of a row or a part of it
  //   Take         on the host, with kHides, a mask or a column: reads its part of the call
  //   Want         on the host, with more than two sums: sets all_sums, whether a call wants all
  //   AddMore      for more than two sums: adds to all sums but the first, and may modify the terms
  //   NeedsCount, CountOneMax  with a label: how OneReadKernel counts maxima; row_ops_losses.cuh
  //   Row::other   with a label: the columns with a special result, and that result
  //   LedRow       if IsLed: the row constants that warp 0 computes; AtLabel() is the result at the
  //                label
  //   Columns      if IsLed: the part of LedRow that Finish needs
  template <Operation kOf>
  struct KernelTraits
      : std::conditional_t<TraitsOf(kOf).TakesColumn(), ColumnOperand<C>, NoColumn> {
    static constexpr bool kKeepsRest = KeepsRest(TraitsOf(kOf), kDTypeOf<T>);
    static constexpr bool kTakesScales = TraitsOf(kOf).TakesScales();
    static constexpr bool kHides = TraitsOf(kOf).hides;
    static constexpr bool kSharesRows = TraitsOf(kOf).SharesRows();
    static constexpr bool kCaps = false;
    static constexpr bool kMayAlign = true;
    static constexpr bool kOnlyLong = false;
    static constexpr int kCount = std::max(1, SumsOf(TraitsOf(kOf), kDTypeOf<T>));
    using Found = Statistics<C, kCount, kKeepsRest>;
    struct VisibleColumns {};
    struct MaskWord {};
    struct Scale {};

    __device__ static void Rescale(C (&sum)[kCount], C factor, C /*difference*/) {
#pragma unroll
      for (C& one : sum) one *= factor;
    }
  };

  __device__ static C Fma(C a, C b, C c) { return fma(a, b, c); }
  __device__ static C Min(C a, C b) { return fmin(a, b); }
  __device__ static C Max(C a, C b) { return fmax(a, b); }
  __device__ static bool IsNaN(C x) { return isnan(x); }
  __device__ static C Sqrt(C x) { return sqrt(x); }
  __device__ static C Log(C x) { return log(x); }
  __device__ static C Log1p(C x) { return log1p(x); }
  __device__ static C Exp(C x) { return exp(x); }
  __device__ static C ExpDifference(C x, C max) { return jaxkernels::ExpDifference<T>(x, max); }
  // As ExpDifference, also for x = inf.
  __device__ static C ExpOfInfinity(C x, C max) { return ExpDifference(x, max); }
  // As ExpOfInfinity, for terms that are summed but not stored.
  __device__ static C ExpForSum(C x, C max) { return FastExp(x - max); }
  // Sets a term of the maximum, which is 1, to 0. Returns the count of maxima, 1 or 0. The flag is
  // unused: with it, float64 kernels compile to different code.
  __device__ static C TakeOutMax(C& term, bool /*is_of_max*/) {
    const C count = term == C(1) ? C(1) : C(0);
    term -= count;
    return count;
  }

  // exp(x - max) / sum of a row. The sum is zero only if all elements are hidden; then the results
  // are zero too.
  struct Quotient {
    C max, sum;
    Reciprocal<T> inverse;
    C log2_sum;

    template <typename Found>
    __device__ explicit Quotient(const Found& of)
        : max(of.max), sum(of.sum[0]), log2_sum(sum == C(0) ? C(0) : log2(sum)) {
      if constexpr (std::is_same_v<typename Found::Exact, SumWithRest>) {
        if (sum != C(0)) inverse = Reciprocal<T>(sum, of.rest[0]);
      } else {
        if (sum != C(0)) inverse = Reciprocal<T>(sum);
      }
    }
    __device__ C OfTerm(C term) const { return inverse.Times(term); }
    __device__ C Of(C x) const {
      if constexpr (kIsHalf) {  // divides within the exponent
        return FastExp2(fma(x - max, kLog2E, -log2_sum));
      } else {
        return OfTerm(ExpDifference(x, max));
      }
    }
  };

  // Columns [begin, end) of a row, and their result.
  struct OtherColumns {
    int begin, end;
    C result;

    __device__ bool Has(int column) const { return column >= begin && column < end; }
  };

  // The logarithm of the sum of a row.
  struct LogOfSum {
    C log_sum;

    __device__ explicit LogOfSum(const auto& of) {
      if constexpr (kIsHalf) {
        log_sum = log(of.sum[0]);
      } else {
        log_sum = log1p(of.sum[0] + (of.sum[1] - 1));
      }
    }
    // (x - max) - log_sum
    __device__ C SubtractFrom(C x, C max) const {
      const C difference = x - max;
      const C y = difference - log_sum;
      return difference > -kInfinity ? y + DifferenceError<T>(x, max, difference) : y;
    }
  };
};

}  // namespace jaxkernels
