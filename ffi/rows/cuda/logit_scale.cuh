// The temperature and the soft cap of a row of logits, applied to elements that are loaded.
#pragma once

#include <cmath>

#include "core/pack.cuh"

namespace jaxkernels {

// Transforms logits of a row to cap tanh(x / cap) / temperature, or to x / temperature without a
// cap. The result is a non-decreasing function of logits of type T.
template <typename T>
struct LogitScale {
  using C = ComputeType<T>;
  C factor = 1;                    // 1 / temperature
  C inverse_cap = 0;               // 0: no cap
  C range = 0, inverse_range = 0;  // cap / temperature, if there is a cap

  LogitScale() = default;
  // `scales`: the temperature and, with `has_cap`, the cap.
  __device__ LogitScale(const C* scales, bool has_cap) : factor(C(1) / scales[0]) {
    if (!has_cap) return;
    inverse_cap = C(1) / scales[1];
    range = RoundedProduct(scales[1], factor), inverse_range = C(1) / range;
  }

  // The transform with a cap, of an element other than -inf. Half types compute tanh |v| as
  // 2 / (1 + exp(-2 |v|)) - 1, which errs by 2^-21.4. Below kLinear this is too much of the result,
  // but there tanh v is v within a relative error of 2^-15.1. The hardware's tanh has 2^-11.
  // (Errors and monotonicity were tested with all numbers of both types and 20,000 caps.)
  // Contractions are explicit: elements equal to the maximum must be transformed to the same bits.
  __device__ C Capped(C x) const {
    if constexpr (kIsHalf<T>) {
      constexpr float kLinear = 0.0092f;
      const float size = fabsf(x);
      const float decay = FastExp2(RoundedProduct(size, -2 * kLog2E * inverse_cap));
      const float bent = fmaf(range, FastReciprocal(fmaf(0.5f, decay, 0.5f)), -range);
      const float capped = size < kLinear / inverse_cap ? RoundedProduct(size, factor) : bent;
      return __uint_as_float(__float_as_uint(capped) ^ (__float_as_uint(x) & 0x80000000u));
    } else {
      return RoundedProduct(range, tanh(x * inverse_cap));
    }
  }
  // The derivative of Capped, divided by `factor`, given its result; finite, and 0 at -inf.
  __device__ C SlopeAt(C capped) const {
    const C scaled = capped * inverse_range;
    const C ratio = scaled > C(-1) ? scaled : C(-1);
    return C(1) - ratio * ratio;
  }
};

}  // namespace jaxkernels
