// The bits of float32 numbers: powers of two, and the order of magnitudes.
#pragma once

#include <cstdint>

namespace jaxkernels {

// PowerOfTwo returns 2^exponent. Requires: -126 <= exponent <= 127.
__device__ inline float PowerOfTwo(int exponent) { return __int_as_float((exponent + 127) << 23); }

// FiniteBits returns the bits of |x|, which have the order of |x|, or 0 if x is not finite.
__device__ inline uint32_t FiniteBits(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffff;
  return bits < 0x7f800000 ? bits : 0;
}

}  // namespace jaxkernels
