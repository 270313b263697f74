// The terms exp(z - max) of losses of half types with a soft cap, z = range tanh(x / cap), and
// their derivatives, from packed elements.
//
// With u = exp(2 x / cap), z is range (1 - 2 / (1 + u)). Four elements share one reciprocal, that
// of the product of their 1 + u. The special function unit, which limits the rate, then has 2.25
// instructions per element instead of 3. z errs by at most 2^-20.5 of the range (measured: every
// number of both types with three random ones, 4000 caps). The error depends on these three, so
// equal elements may have different terms. LogitScale::Capped transforms the maximum and the
// label's element.
//
// TB/s read, 2^29 elements (2026-11):
// H200 bf16 loss of 512, 4096, 32768, 128256 cols, no cap: 4.11, 4.31, 4.10, 4.29
// H200 bf16 the same, a cap, LogitScale::Capped: 2.01, 1.87, 2.07, 2.10
// H200 bf16 the same, a cap, these terms: 2.18, 1.90, 2.92, 2.93
#pragma once

#include "rows/cuda/logit_scale.cuh"

namespace jaxkernels {

// kMayHide: whether elements may be -inf.
template <typename T, bool kMayHide>
class CappedTerms {
 public:
  static constexpr int kSize = Pack<T>::kSize;

  // `max`: LogitScale::Capped(largest). Differentiate does not use `largest`, the largest element.
  __device__ CappedTerms(const LogitScale<T>& scale, float max, float largest)
      : slope_(2 * kLog2E * scale.inverse_cap),
        reach_(-2 * kLog2E * scale.range),
        shift_(RoundedSum(scale.range, -max) * kLog2E),
        largest_(largest) {}

  // Whether this class serves a row with such a maximum: u is at most 2^25, so that no product
  // overflows, and z errs by at most kMostRange 2^-20.5.
  __device__ static bool Fits(const LogitScale<T>& scale, float max) {
    return max < scale.range && scale.range <= kMostRange;
  }

  // Computes the terms of a pack.
  __device__ void Compute(const Pack<T>& pack, float (&term)[kSize]) const {
    Invert(pack, reach_, [&](int j, float /*u*/, float part, float other) {
      term[j] = FastExp2(fmaf(part, other, shift_));
    });
    if constexpr (kMayHide) {
      if (HasMinusInfinity(pack)) Remove(pack, -kInfinity<float>, term);
    }
  }
  // Counts the elements that equal the largest, and removes their terms.
  __device__ void CountMax(const Pack<T>& pack, float (&term)[kSize], float& count) const {
    constexpr float kLeast = 0.999f;  // the term of the maximum is 1, but for the error of z
    if (SumPairwise(term) >= kLeast) count += Remove(pack, largest_, term);
  }
  // Computes the derivatives of factor * term with respect to x / temperature; 0 for -inf.
  __device__ void Differentiate(const Pack<T>& pack, float factor, float (&result)[kSize]) const {
    Invert(pack, 1.0f, [&](int j, float u, float part, float other) {
      const float inverse = part * other;
      // The derivative of z is 4 u / (1 + u)^2; the 4 is added to the exponent of 2.
      const float term = FastExp2(fmaf(inverse, reach_, shift_ + 2));
      result[j] = term * (u * inverse * inverse) * factor;
    });
  }

 private:
  static constexpr float kMostRange = 128;

  // Sets the terms of elements that equal `number` to 0; returns how many there are.
  __device__ static float Remove(const Pack<T>& pack, float number, float (&term)[kSize]) {
    float count = 0;
#pragma unroll
    for (int j = 0; j < kSize; j += 2) {
      float pair[2];
      Widen2(&pack.element[j], pair);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (pair[k] == number) term[j + k] = 0, count += 1;
      }
    }
    return count;
  }
  // Calls body(j, u, a, b) for each element; the product a b is scale / (1 + u).
  template <typename Body>
  __device__ void Invert(const Pack<T>& pack, float scale, const Body& body) const {
    float u[kSize], sum[kSize];
#pragma unroll
    for (int j = 0; j < kSize; j += 2) Widen2(&pack.element[j], &u[j]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) u[j] = FastExp2(u[j] * slope_), sum[j] = u[j] + 1;
#pragma unroll
    for (int j = 0; j < kSize; j += 4) {
      const float first = sum[j] * sum[j + 1], second = sum[j + 2] * sum[j + 3];
      const float inverse = scale * FastReciprocal(first * second);
      const float of_first = inverse * second, of_second = inverse * first;
      body(j, u[j], of_first, sum[j + 1]), body(j + 1, u[j + 1], of_first, sum[j]);
      body(j + 2, u[j + 2], of_second, sum[j + 3]), body(j + 3, u[j + 3], of_second, sum[j + 2]);
    }
  }

  float slope_, reach_, shift_, largest_;
};

}  // namespace jaxkernels
