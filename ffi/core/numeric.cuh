// Arithmetic of the row kernels: conversion between storage and compute types, exponentials,
// division.
//
// Owns: the compute type of each storage type (float32 for float16 and bfloat16) and the accuracy.
// Must not know: rows, packs, tiers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "core/exp_double.cuh"

namespace jaxkernels {

template <>
struct DTypeOf<__half> : std::integral_constant<DType, DType::kFloat16> {};
template <>
struct DTypeOf<__nv_bfloat16> : std::integral_constant<DType, DType::kBFloat16> {};

template <typename T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Half storage types round results to 8 or 11 significant bits, so the hardware's exp2 (error about
// 2^-22) is enough.
template <typename T>
inline constexpr bool kIsHalf = IsHalf(kDTypeOf<T>);
template <typename T>
using Half2Of = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <typename C>
inline constexpr C kInfinity = C(INFINITY);
template <typename C>
inline constexpr C kLargestFinite = std::numeric_limits<C>::max();
// The largest integer whose exponential is finite.
template <typename C>
inline constexpr C kLargestExponent = sizeof(C) == 8 ? C(709) : C(88);

// Converts two neighbouring elements: the hardware converts half types in pairs.
template <typename C>
__device__ void Widen2(const C* from, C* to) {
  to[0] = from[0], to[1] = from[1];
}
__device__ inline void Widen2(const __half* from, float* to) {
  const uint32_t word = *reinterpret_cast<const uint32_t*>(from);
  const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
  to[0] = pair.x, to[1] = pair.y;
}
__device__ inline void Widen2(const __nv_bfloat16* from, float* to) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
  to[0] = __uint_as_float(pair << 16), to[1] = __uint_as_float(pair & 0xffff0000u);
}

template <typename C>
__device__ void Narrow2(const C* from, C* to) {
  to[0] = from[0], to[1] = from[1];
}
__device__ inline void Narrow2(const float* from, __half* to) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(from[0], from[1]);
}
__device__ inline void Narrow2(const float* from, __nv_bfloat16* to) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(from[0], from[1]);
}

__device__ inline float Max(float a, float b) { return fmaxf(a, b); }
// Ignores a NaN in the second operand but not in the first. A row with a NaN still has the sum NaN.
// This takes three instructions; fmax takes six.
__device__ inline double Max(double a, double b) { return a < b ? b : a; }

// a + b, never contracted. The compiler fuses `a * b + c` in some kernels and not in others;
// without contraction all kernels give the same bits.
__device__ inline float RoundedSum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double RoundedSum(double a, double b) { return __dadd_rn(a, b); }

__device__ inline float RoundedProduct(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double RoundedProduct(double a, double b) { return __dmul_rn(a, b); }

// Elementwise maximum of two neighbouring elements, stored in the first operand.
template <typename T>
__device__ void Max2(T* max, const T* x) {
  if constexpr (kIsHalf<T>) {
    auto& pair = *reinterpret_cast<Half2Of<T>*>(max);
    pair = __hmax2(pair, *reinterpret_cast<const Half2Of<T>*>(x));
  } else {
    max[0] = Max(max[0], x[0]), max[1] = Max(max[1], x[1]);
  }
}

// Elementwise minimum, ignoring NaN, stored in the first operand.
template <typename T>
__device__ void Min2(T* min, const T* x) {
  if constexpr (kIsHalf<T>) {
    auto& pair = *reinterpret_cast<Half2Of<T>*>(min);
    pair = __hmin2(pair, *reinterpret_cast<const Half2Of<T>*>(x));
  } else {
    min[0] = fmin(min[0], x[0]), min[1] = fmin(min[1], x[1]);
  }
}

inline constexpr float kLog2E = 1.4426950408889634f;

// 2^t. Results below 2^-126 flush to zero; of the half types only bfloat16 could represent them.
__device__ inline float FastExp2(float t) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(t));
  return result;
}

// 1 / x with a relative error of 2^-23.
__device__ inline float FastReciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// exp(x) in float32 with a relative error of about |x| 2^-23 + 2^-22.
__device__ inline float FastExp(float x) { return FastExp2(x * kLog2E); }
// exp(x) in float64, for x <= kLargestExponent or infinite. Functions that call ExpDouble are
// templates, so that its constants are in the float64 cubin alone.
template <typename C>
__device__ C FastExp(C x) {
  return ExpDouble(x, C(0));
}

// The rounding error of the difference a - b (Knuth's TwoDiff): a - b == difference + error
// exactly.
// Requires: the difference is finite. Half types do not need it: their differences are exact, or
// the error is below their precision.
template <typename T>
__device__ ComputeType<T> DifferenceError(ComputeType<T> a, ComputeType<T> b,
                                          ComputeType<T> difference) {
  if constexpr (kIsHalf<T>) return 0;
  const ComputeType<T> b_part = a - difference;
  return (a - (difference + b_part)) + (b_part - b);
}

// exp(difference + error) for difference <= kLargestExponent and a tiny error. Results below the
// smallest normal number are zero. An infinite or NaN difference has the error NaN, which is
// ignored: -inf gives 0, inf gives inf, NaN gives NaN.
template <typename C>
__device__ C ExpWithError(C difference, C error) {
  return ExpDouble(difference, error);
}

// In float32 the rounding error of the product with log2(e) is kept too, and both errors are
// multiplied in at the end. This takes 13 instructions; expf with the same correction takes 17.
// fminf, which prefers numbers to NaN, replaces a NaN error.
// H200 f32 50256 cols, fraction of the copy rate: this 0.92, expf 0.89
__device__ inline float ExpWithError(float difference, float error) {
  constexpr float kLog2ELow = 1.925963033500e-8f;  // log2(e) - kLog2E
  constexpr float kLn2 = 0.6931471805599453f;
  const float exponent = difference * kLog2E;
  const float exponent_error = fmaf(difference, kLog2ELow, fmaf(difference, kLog2E, -exponent));
  const float correction = fmaf(exponent_error, kLn2, error);
  const float exponential = FastExp2(exponent);
  return fmaf(exponential, fminf(correction, 1.0f), exponential);
}

// As ExpWithError, but without the hardware's exp2 and with a relative error within 2^-24. It is
// for factors that multiply all terms of a sum. The range reduction is that of exp_double.cuh; the
// polynomial's relative error is 2^-33.
// Requires: the difference is not +inf.
template <typename C>
__device__ C PreciseExpWithError(C difference, C error) {
  return ExpWithError(difference, error);
}
__device__ inline float PreciseExpWithError(float difference, float error) {
  constexpr float kRounder = 0x1.8p23f;  // adding it rounds to an integer
  constexpr float kLn2 = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kLogOfSmallestNormal = -0x1.5d58ap+6f;

  // difference + error = n log(2) + r + low. The fma that gives r is exact.
  const float rounded = fmaf(difference, kLog2E, kRounder);
  const float n = rounded - kRounder;
  const float r = fmaf(n, -kLn2, difference);
  const float low = fmaf(n, -kLn2Low, fminf(error, 1.0f));

  // exp(r) = 1 + r + r^2 (c0 + c1 r + ...) for |r| <= log(2) / 2.
  const float sum = r + low;
  float of_r = 0x1.9df792p-13f;
  of_r = fmaf(of_r, sum, 0x1.6d4ccap-10f);
  of_r = fmaf(of_r, sum, 0x1.11131p-7f);
  of_r = fmaf(of_r, sum, 0x1.5554e8p-5f);
  of_r = fmaf(of_r, sum, 0x1.555554p-3f);
  of_r = fmaf(of_r, sum, 0.5f);
  const float high = RoundedSum(1.0f, r);
  const float rest = RoundedSum(RoundedSum(r, -RoundedSum(high, -1.0f)), low);
  of_r = RoundedSum(high, fmaf(of_r * sum, sum, rest));

  // 2^n is built from n, the low bits of `rounded`, as the exponent.
  const float power = __uint_as_float((__float_as_uint(rounded) << 23) + __float_as_uint(1.0f));
  return difference < kLogOfSmallestNormal ? 0.0f : of_r * power;
}

// exp(x - max) for x - max <= kLargestExponent, to a few units in the last place over the whole
// range. It keeps the rounding error of x - max, which alone would cost up to 90 units in float32.
template <typename T>
__device__ ComputeType<T> ExpDifference(ComputeType<T> x, ComputeType<T> max) {
  const ComputeType<T> difference = x - max;
  if constexpr (kIsHalf<T>) {
    return FastExp(difference);
  } else {
    return ExpWithError(difference, DifferenceError<T>(x, max, difference));
  }
}

// As ExpDifference, with a relative error within 2^-24 in float32.
// Requires: x - max is not +inf.
template <typename T>
__device__ ComputeType<T> PreciseExpDifference(ComputeType<T> x, ComputeType<T> max) {
  const ComputeType<T> difference = x - max;
  if constexpr (kIsHalf<T>) {
    return FastExp(difference);
  } else {
    return PreciseExpWithError(difference, DifferenceError<T>(x, max, difference));
  }
}

// 1 / (denominator + rest) in about twice the precision, so that a product with it equals a
// quotient rounded once. The product takes two operations; a division by a Newton step takes three.
// Half types need neither the rest nor the precision.
// Requires: for half types, a denominator within [2^-126, 2^126].
template <typename T>
class Reciprocal {
 public:
  using C = ComputeType<T>;

  Reciprocal() = default;  // 0
  __device__ explicit Reciprocal(C denominator, C rest = 0) {
    if constexpr (kIsHalf<T>) {
      value_ = __fdividef(1.0f, denominator);
    } else {
      value_ = 1 / denominator;
      rest_ = value_ * fma(-value_, rest, fma(-value_, denominator, C(1)));
    }
  }

  __device__ C Times(C numerator) const {
    if constexpr (kIsHalf<T>) {
      return numerator * value_;
    } else {
      return fma(numerator, value_, numerator * rest_);
    }
  }

 private:
  C value_ = 0, rest_ = 0;
};

}  // namespace jaxkernels
