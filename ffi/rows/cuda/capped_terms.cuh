// The terms exp(z - max) of losses of half types with a soft cap, z = range tanh(x / cap), and
// their derivatives, from packed elements.
//
// With u = exp(2 x / cap), z is range (1 - 2 / (1 + u)). Four elements share one reciprocal, that
// of the product of their 1 + u: the special function unit, the limit, has 2.25 instructions per
// element instead of 3. z errs by 2^-20.5 of the range (all numbers of both types, 4000 caps), and
// equal elements may differ. LogitScale::Capped transforms the maximum and the label's element.
//
// TB/s read, 2^29 elements (2026-11): without a cap; by LogitScale::Capped; now
// H200 bf16 loss of 512, 4096, 32768, 128256 cols: 4.11, 4.31, 4.10, 4.29
//   2.01, 1.87, 2.07, 2.10; 2.18, 1.90, 2.92, 2.93
#pragma once

#include "rows/cuda/logit_scale.cuh"

namespace jaxkernels {

// kMayHide: whether elements may be -inf.
template <typename T, bool kMayHide>
class CappedTerms {
 public:
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr float kSlopes = 4;

  __device__ CappedTerms(const LogitScale<T>& scale, float max)
      : slope_(2 * kLog2E * scale.inverse_cap),
        reach_(-2 * kLog2E * scale.range),
        shift_((scale.range - max) * kLog2E),
        least_(1 - scale.range * 0x1p-19f) {}

  // Whether the other members may be used: the products do not overflow, and an error that is
  // proportional to the cap does not matter.
  __device__ static bool Fits(const LogitScale<T>& scale, float max) {
    return max < scale.range && scale.range <= kMostRange;
  }

  // A lower bound of the term of the maximum.
  __device__ float LeastOfMax() const { return least_; }

  // The terms of a pack.
  __device__ void Compute(const Pack<T>& pack, float (&term)[kSize]) const {
    Invert(pack, reach_, [&](int j, float /*u*/, float part, float other) {
      term[j] = FastExp2(fmaf(part, other, shift_));
    });
    if constexpr (kMayHide) {
      if (!HasMinusInfinity(pack)) return;
#pragma unroll
      for (int j = 0; j < kSize; j += 2) {
        float pair[2];
        Widen2(&pack.element[j], pair);
        if (pair[0] == -kInfinity<float>) term[j] = 0;
        if (pair[1] == -kInfinity<float>) term[j + 1] = 0;
      }
    }
  }
  // The products of terms, `factor` and kSlopes, and the derivatives of z by x / temperature,
  // divided by kSlopes; 0 for -inf.
  __device__ void Compute(const Pack<T>& pack, float factor, float (&term)[kSize],
                          float (&slope)[kSize]) const {
    Invert(pack, 1.0f, [&](int j, float u, float part, float other) {
      const float inverse = part * other;
      term[j] = FastExp2(fmaf(inverse, reach_, shift_)) * (kSlopes * factor);
      slope[j] = u * inverse * inverse;
    });
  }

 private:
  static constexpr float kMostRange = 128;

  // Calls body(j, u, a, b) for each element, where a b = scale / (1 + u).
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

  float slope_, reach_, shift_, least_;
};

}  // namespace jaxkernels
