// The temperature and the soft cap of a row of logits, applied to elements that are loaded.
#ifndef JAXKERNELS_ROWS_CUDA_LOGIT_SCALE_CUH_
#define JAXKERNELS_ROWS_CUDA_LOGIT_SCALE_CUH_

#include <cmath>

#include "core/numeric.cuh"

namespace jaxkernels {

// factor * tanh(v). For half types it is a minimax quotient of polynomials up to |v| = 6.3, and
// constant from there on: relative error 2^-15.8; the hardware's tanh has 2^-11. Contractions are
// explicit: elements equal to the maximum must be transformed to the same bits.
template <typename T>
__device__ ComputeType<T> TimesTanh(ComputeType<T> factor, ComputeType<T> v) {
  if constexpr (kIsHalf<T>) {
    v = Clamp(v, 6.3f);
    const float s = v * v;
    float above = fmaf(factor * 0x1.836af4p-10f, s, factor * 0x1.d400aep-4f);
    above = fmaf(above, s, factor * 0x1.fffeaep-1f);
    float below = fmaf(0x1.c49df2p-15f, s, 0x1.1cff22p-6f);
    below = fmaf(fmaf(below, s, 0x1.ca441cp-2f), s, 1.0f);
    return RoundedProduct(RoundedProduct(v, above), FastReciprocal(below));
  } else {
    return RoundedProduct(factor, tanh(v));
  }
}

// Transforms logits of a row to cap tanh(x / cap) / temperature, or to x / temperature without a
// cap. The result does not decrease with x.
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
    range = scales[1] * factor, inverse_range = C(1) / range;
  }

  // The transform with a cap, of an element other than -inf.
  __device__ C Capped(C x) const { return TimesTanh<T>(range, x * inverse_cap); }
  // The derivative by the element at a capped logit, divided by `factor`; finite, and 0 at -inf.
  __device__ C SlopeAt(C capped) const {
    const C scaled = capped * inverse_range;
    const C ratio = scaled > C(-1) ? scaled : C(-1);
    return C(1) - ratio * ratio;
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_LOGIT_SCALE_CUH_
