// The arithmetic of row operations on the CPU, with the members that only the drivers need.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/math_cpu.h"
#include "core/numeric_cpu.h"
#include "rows/operations.h"

namespace jaxkernels {

// Statistics of a row or a part of it: its maximum, and sums of terms relative to that maximum.
// `of_max` is the term of the maximum: 1, or ExpTimesPower of it.
template <typename C, int kCount>
struct Statistics {
  C max, of_max = 1;
  double sum[kCount > 0 ? kCount : 1];
};

// Per-row inputs: the scalars, or the epsilon if the operation averages; with labels also the
// label, clamped to cols, the element there (NaN if the label is too large), and the unit.
template <typename C>
struct GivenRow {
  double scalar[kLossResiduals + kLossCotangents], cols;
  int label;
  C labelled;
  C unit;  // 1 / temperature
};

// The arithmetic on storage type T; rows/ops/row_op.h says what operations use. kIsHalf: whether
// results are rounded to 16 bits.
template <typename T, bool kHalf = !std::is_same_v<T, CpuComputeType<T>>>
struct Cpu {
  using Storage = T;
  using C = CpuComputeType<T>;
  using Sum = double;          // of sums and of the constants of a row, until they are rounded
  using OfSums = Cpu<double>;  // the arithmetic on those
  static constexpr bool kIsHalf = kHalf;
  static constexpr bool kKeepsTermsOfHalf = true;
  static constexpr C kInfinity = std::numeric_limits<C>::infinity();
  static constexpr C kLargestFinite = std::numeric_limits<C>::max();

  // The members of an operation that only the drivers need:
  //   kTermSums  number of sums that are not always 0
  //   kCounts    whether a lane sums second terms in C: whole numbers, or terms of half types
  //   kHasNear   whether rows whose maximum is near 0 have fixed-shift terms (ExpTimesPower), which
  //              are cheaper. They share the factor Statistics::of_max, which MakeRow removes
  //   Kept       maps a term to the summand that is kept
  //   MoreTerms  the summands of the third to fifth sums, from Term before SecondTerm
  template <Operation kOf>
  struct KernelTraits {
    static constexpr int kTermSums = SumsOf(TraitsOf(kOf), kDTypeOf<T>);
    static constexpr bool kCounts =
        kTermSums > 1 && !TraitsOf(kOf).averages && (kIsHalf || TraitsOf(kOf).counts_max);
    static constexpr bool kHasNear =
        std::is_same_v<T, float> &&
        (kOf == Operation::kSoftmaxForward || kOf == Operation::kLogSoftmaxForward);
    JK_INLINE static C Kept(C term, C /*x*/) { return term; }
  };

  JK_INLINE static C Fma(C a, C b, C c) { return a * b + c; }
  JK_INLINE static C Min(C a, C b) { return b < a ? b : a; }
  template <typename N>
  JK_INLINE static N Max(N a, N b) {
    return a < b ? b : a;
  }
  JK_INLINE static bool IsNaN(double x) { return x != x; }
  JK_INLINE static double Sqrt(double x) { return __builtin_sqrt(x); }
  // log(x) for x >= 0
  JK_INLINE static double Log(double x) {
    constexpr double kMost = std::numeric_limits<double>::max();
    return x > 0 && x <= kMost ? jaxkernels::Log(x) : x == 0 ? -kInf<double> : x;
  }
  JK_INLINE static double Log1p(double x) { return jaxkernels::Log1p(x); }
  // exp(x) for x <= 0
  JK_INLINE static C Exp(C x) { return jaxkernels::Exp<true>(x, C(0)); }
  // exp(x - max) for max >= x. It corrects the rounding error of x - max, which would cost |x -
  // max| units in the last place (about 90 at the end of float32's range). Half types do not need
  // that: their differences are exact, or the error is below their precision.
  JK_INLINE static C ExpDifference(C x, C max) {
    const C difference = x - max;
    return jaxkernels::Exp<true>(difference, kIsHalf ? C(0) : DifferenceError(x, max, difference));
  }
  // As ExpDifference, also for x = inf.
  JK_INLINE static C ExpOfInfinity(C x, C max) {
    return x == kInfinity ? kInfinity : ExpDifference(x, max);
  }
  JK_INLINE static C ExpForSum(C x, C max) { return ExpOfInfinity(x, max); }
  // Clears the term of the maximum. Returns the count of maxima, 1 or 0.
  JK_INLINE static C TakeOutMax(C& term, bool is_of_max) {
    term = is_of_max ? C(0) : term;
    return is_of_max ? C(1) : C(0);
  }

  // exp(x - max) / sum of a row. The common factor of fixed-shift terms cancels.
  struct Quotient {
    C max, sum, inverse;

    Quotient() = default;
    JK_INLINE explicit Quotient(const auto& of)
        : max(of.max), sum(of.sum[0]), inverse(C(1) / sum) {}
    // One Newton step rounds the quotient like a division; half types do not need it.
    JK_INLINE C OfTerm(C term) const {
      const C quotient = term * inverse;
      if constexpr (kIsHalf) return quotient;
      return quotient + (term - quotient * sum) * inverse;
    }
    JK_INLINE C Of(C x) const { return OfTerm(ExpDifference(x, max)); }
  };

  // Columns [begin, end) of a row, that of the label or all, and their result.
  struct OtherColumns {
    C begin, end, result;

    OtherColumns() = default;
    JK_INLINE OtherColumns(int begin, int end, double result)
        : begin(begin), end(end), result(result) {}
    JK_INLINE bool HasAll(int64_t cols) const { return begin == 0 && end == static_cast<C>(cols); }
  };

  // The logarithm of the sum of a row, in two parts.
  struct LogOfSum {
    C high, low;

    LogOfSum() = default;
    JK_INLINE explicit LogOfSum(const auto& of) {
      double log_sum;
      if constexpr (kIsHalf) {
        log_sum = jaxkernels::Log(of.sum[0]);
      } else {
        log_sum = jaxkernels::Log1p(of.sum[0] / of.of_max + (of.sum[1] - 1));
      }
      high = C(log_sum), low = C(log_sum - double(high));
    }
    // (x - max) minus the logarithm
    JK_INLINE C SubtractFrom(C x, C max) const {
      const C difference = x - max;
      if constexpr (kIsHalf) return difference - high;
      return (difference - high) + (DifferenceError(x, max, difference) - low);
    }
  };
};

}  // namespace jaxkernels
