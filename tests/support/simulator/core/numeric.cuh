#pragma once
#include "simulator.h"

namespace jaxkernels {
template <typename C>
inline constexpr C kInfinity = C(INFINITY);
inline constexpr float kLog2E = 1.4426950408889634f;
inline float RoundedProduct(float a, float b) { return a * b; }
inline float FastExp2(float t) {
  const float found = std::exp2(t);
  return found < 0x1p-126f ? 0.0f : found;
}
}  // namespace jaxkernels
