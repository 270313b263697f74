// exp, log and tanh of the CPU kernels, without branches and denormal values as in numeric_cpu.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/numeric_cpu.h"

namespace jaxkernels {

// The rounding error of the difference a - b (Knuth's TwoDiff): a - b == difference + error
// exactly. Zero if the difference is NaN, or so small that its exponential is zero.
template <typename C>
JK_INLINE C DifferenceError(C a, C b, C difference) {
  const C b_part = a - difference;
  const C error = (a - (difference + b_part)) + (b_part - b);
  return difference > C(-1000) ? error : C(0);
}

template <typename C>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = uint32_t;
  static constexpr int kFractionBits = 23;
  static constexpr Bits kBias = 127;
  static constexpr float kMin = -104.0f, kMax = 89.0f;  // 0 and infinity from there on
  static constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kLog2E = 1.44269504f;
  // log 2 in two parts; an integer below 2^9 times the first is exact.
  static constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  // exp(r) = 1 + r + r^2 (c0 + c1 r + ...) for |r| <= log(2)/2, minimax: relative error 2^-28.3.
  static constexpr float kPolynomial[] = {0.499999934f, 0.166665204f, 0.0416683908f, 0.00836874511f,
                                          0.00138145402f};
};

template <>
struct ExpConstants<double> {
  using Bits = uint64_t;
  static constexpr int kFractionBits = 52;
  static constexpr Bits kBias = 1023;
  static constexpr double kMin = -746.0, kMax = 710.0;
  static constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLog2E = 1.4426950408889634;
  // An integer below 2^12 times the first part is exact.
  static constexpr double kLog2High = 0x1.62e42fefap-1, kLog2Low = 0x1.cf79abc9e3b3ap-40;
  // Relative error 2^-63.
  static constexpr double kPolynomial[] = {
      0.500000000000000001,   0.166666666666666834,   0.041666666666666616,
      0.00833333333331682211, 0.0013888888888911515,  0.000198412698973173365,
      2.48015872607524813e-5, 2.75572336852040039e-6, 2.75573375203693489e-7,
      2.51124960530832312e-8, 2.08927361733341768e-9};
};

// (exp(r) - 1) / r for |r| <= log(2)/2
template <typename C>
JK_INLINE C ExpSlope(C r) {
  using K = ExpConstants<C>;
  constexpr int kTerms = sizeof(K::kPolynomial) / sizeof(C);
  C p = K::kPolynomial[kTerms - 1];
  for (int i = kTerms - 2; i >= 0; --i) p = p * r + K::kPolynomial[i];
  return p * r + C(1);
}

// exp(r) for |r| <= log(2)/2
template <typename C>
JK_INLINE C ExpOfRest(C r) {
  return ExpSlope(r) * r + C(1);
}

// exp(x + error) to about one unit in the last place, for |error| far below 1. Negative infinity
// gives 0, NaN stays NaN, denormal results are rounded once. kNonPositive is cheaper and requires x
// <= 0.
template <bool kNonPositive, typename C>
JK_INLINE C Exp(C x, C error) {
  using K = ExpConstants<C>;
  using Bits = typename K::Bits;
  x = x < K::kMin ? K::kMin : x;  // these comparisons are false for NaN
  if constexpr (!kNonPositive) x = x > K::kMax ? K::kMax : x;
  // x = n log 2 + r
  const C rounded = x * K::kLog2E + K::kRounder;
  const C n = rounded - K::kRounder;
  const C r = (x - n * K::kLog2High) + (error - n * K::kLog2Low);
  const C p = ExpOfRest(r);
  // Multiplies by 2^n in two normal factors: n ranges from below the smallest exponent to above the
  // largest.
  const Bits integer = BitCast<Bits>(rounded) - BitCast<Bits>(K::kRounder);
  if constexpr (kNonPositive) {
    constexpr Bits kShift = K::kBias / 2 + 1;  // 2^(n + kShift) is normal for all n <= 0 above kMin
    const C scale = BitCast<C>((integer + K::kBias + kShift) << K::kFractionBits);
    return p * scale * BitCast<C>((K::kBias - kShift) << K::kFractionBits);
  } else {
    // The exponent is halved as an unsigned number, since AVX2 has no arithmetic shift of 64 bits.
    constexpr Bits kOffset = 4 * K::kBias;
    const Bits shifted = integer + kOffset;
    const Bits half = shifted >> 1;
    const C scale1 = BitCast<C>((half - kOffset / 2 + K::kBias) << K::kFractionBits);
    const C scale2 = BitCast<C>((shifted - half - kOffset / 2 + K::kBias) << K::kFractionBits);
    return p * scale1 * scale2;
  }
}

// exp(x) - 1 for x <= 0, to a few units in the last place, also near 0. NaN stays NaN.
template <typename C>
JK_INLINE C ExpMinusOne(C x) {
  using K = ExpConstants<C>;
  using Bits = typename K::Bits;
  x = x < C(-60) ? C(-60) : x;  // -1 from there on
  const C rounded = x * K::kLog2E + K::kRounder;
  const C n = rounded - K::kRounder;
  const C r = (x - n * K::kLog2High) - n * K::kLog2Low;
  const Bits integer = BitCast<Bits>(rounded) - BitCast<Bits>(K::kRounder);
  const C power = BitCast<C>((integer + K::kBias) << K::kFractionBits);
  return power * (ExpSlope(r) * r) + (power - 1);
}

// tanh(x) to less than three units in the last place (float64: four). In float32 it is monotonic.
// NaN stays NaN.
template <typename C>
JK_INLINE C Tanh(C x) {
  const C less = ExpMinusOne(-2 * std::fabs(x));
  return std::copysign(less / (2 + less), x);
}

// Largest magnitude of a row's maximum for ExpTimesPower: then |n| stays below 2^9.
inline constexpr float kMostNear = 250.0f;
JK_INLINE bool IsNear(float max) { return max >= -kMostNear && max <= kMostNear; }

// The power for ExpTimesPower in a row with this maximum. It scales the maximum's exponential to
// 1.4 to 2.9, so that a term becomes denormal only if its share of the sum would be.
JK_INLINE float PowerOf(float max) {
  using K = ExpConstants<float>;
  return (max * K::kLog2E + K::kRounder) - K::kRounder - 1;
}

// exp(x) 2^-power to about one unit in the last place, where `power` is PowerOf(max), IsNear(max)
// and x <= max. It needs no difference x - max, whose rounding error would have to be corrected.
// Denormal results are 0 or rounded once. Negative infinity gives 0, NaN stays NaN.
JK_INLINE float ExpTimesPower(float x, float power) {
  using K = ExpConstants<float>;
  const float least = (power - 126.9f) * 0.693147182f;  // 2^-127 has the bits of 0
  x = x < least ? least : x;                            // false for NaN
  const float rounded = x * K::kLog2E + K::kRounder;
  const float n = rounded - K::kRounder;
  const float r = (x - n * K::kLog2High) - n * K::kLog2Low;  // |n| < 2^9
  const uint32_t exponent =
      BitCast<uint32_t>(rounded) - BitCast<uint32_t>(power + K::kRounder) + K::kBias;
  return ExpOfRest(r) * BitCast<float>(exponent << K::kFractionBits);
}

// log(x) for normal x > 0 to about one unit in the last place. `less_one` is x - 1, and may be more
// exact than x. Infinity and NaN give NaN.
JK_INLINE double Log(double x, double less_one) {
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  // x = 2^e m with m in [sqrt(1/2), sqrt(2))
  const uint64_t bits = BitCast<uint64_t>(x);
  const uint64_t above = bits - kSqrtHalf + (uint64_t{1024} << 52);
  const uint64_t biased = above >> 52;  // e + 1024
  const double e = BitCast<double>(biased | (uint64_t{0x433} << 52)) - (0x1p52 + 1024);
  const double m = BitCast<double>((above & kFraction) + kSqrtHalf);
  // log m = 2 artanh(s) with s = (m-1)/(m+1), as (m-1) - square/2 + s (square/2 + series)
  const double f = biased == 1024 ? less_one : m - 1;
  const double s = f / (f + 2);
  const double z = s * s;
  double series = 2.0 / 23;
  for (int k = 21; k >= 3; k -= 2) series = series * z + 2.0 / k;
  const double half_square = 0.5 * f * f;
  using K = ExpConstants<double>;
  const double low = s * (half_square + series * z) + e * K::kLog2Low;
  return (e * K::kLog2High - ((half_square - low) - f)) + (less_one - less_one);
}

JK_INLINE double Log(double x) { return Log(x, x - 1); }

// log(1 + x) for x >= 0 that is 0 or normal, to about two units in the last place (one for x <
// 0.41); -1, infinity and NaN give NaN.
JK_INLINE double Log1p(double x) {
  return Log(1 + x, x > -1 ? x : std::numeric_limits<double>::quiet_NaN());
}

}  // namespace jaxkernels
