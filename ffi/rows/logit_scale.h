// The temperature and the soft cap of a row of logits, for kernels of both platforms.
//
// Owns: the transform of a logit and its derivative. Must not know: XLA, rows of arrays, any
// device. A platform's `Arithmetic` has the compute type C, TimesTanh(factor, v), and Product(a,
// b), which is never contracted: elements equal to the maximum must be transformed to the same
// bits. TimesRoughTanh also needs Clamp(v, bound), which keeps NaN, and Reciprocal.
#ifndef JAXKERNELS_ROWS_LOGIT_SCALE_H_
#define JAXKERNELS_ROWS_LOGIT_SCALE_H_

#include "core/host_device.h"

namespace jaxkernels {

// factor * tanh(v) with a relative error of 2^-15.8, for logits of half types: a minimax quotient
// of polynomials up to |v| = 6.3, and constant from there on. The hardware's tanh has 2^-11.
template <typename Arithmetic>
JK_ARITHMETIC float TimesRoughTanh(float factor, float v) {
  v = Arithmetic::Clamp(v, 6.3f);
  const float s = v * v;
  const float above =
      ((factor * 0x1.836af4p-10f) * s + factor * 0x1.d400aep-4f) * s + factor * 0x1.fffeaep-1f;
  const float below = ((0x1.c49df2p-15f * s + 0x1.1cff22p-6f) * s + 0x1.ca441cp-2f) * s + 1.0f;
  return Arithmetic::Product(v * above, Arithmetic::Reciprocal(below));
}

// Transforms logits of a row to cap tanh(x / cap) / temperature, or to x / temperature without a
// cap. The result does not decrease with x.
template <typename Arithmetic>
struct LogitScale {
  using C = typename Arithmetic::C;
  C factor = 1;                    // 1 / temperature
  C inverse_cap = 0;               // 0: no cap
  C range = 0, inverse_range = 0;  // cap / temperature, if there is a cap

  LogitScale() = default;
  // `scales`: the temperature and, with `has_cap`, the cap.
  JK_ARITHMETIC LogitScale(const C* scales, bool has_cap) : factor(C(1) / scales[0]) {
    if (!has_cap) return;
    inverse_cap = C(1) / scales[1];
    range = scales[1] * factor, inverse_range = C(1) / range;
  }

  // The transform with a cap, of an element other than -inf.
  JK_ARITHMETIC C Capped(C x) const { return Arithmetic::TimesTanh(range, x * inverse_cap); }
  // The derivative by the element at a capped logit, divided by `factor`; finite, and 0 at -inf.
  JK_ARITHMETIC C SlopeAt(C capped) const {
    const C scaled = capped * inverse_range;
    const C ratio = scaled > C(-1) ? scaled : C(-1);
    return C(1) - ratio * ratio;
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_LOGIT_SCALE_H_
