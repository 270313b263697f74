// A float32 as a pair of float16: x * scale = high + low / 2^11.
//
// Owns: the arithmetic of pairs and of the scales of lines, the facts about a line that the product
// needs, and the places of pairs in a packed tile. Must not know: which thread reads what.
//
// A line is scaled by a power of two so that its largest finite element lies in [2^14, 2^15). Then
// high <= 2^15, |x - high| <= 8 and |low| <= 2^14. A pair keeps 23 bits of every element of at
// least 2^-13 (2^-28 of the largest). Below that, high and low lose bits to the smallest float16,
// 2^-24, and the error is at most 2^-36.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/float_bits.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

inline constexpr float kLowScale = 2048.0f;
inline constexpr float kLeastExact = 0x1p-13f;

// A line is inexact if it has a nonzero element below kLeastExact. In the product of such an
// element x with y, both scaled, rounding x loses at most 2^-36 |y|. Leaving out low low loses as
// much. A whole sum loses at most 2^-35 of the other line's norm, which is the sum of its |y|. A
// sum of at least 2^-14 of that norm is certain: it loses at most 2^-21 of itself.
inline constexpr float kLeastSumOfNorm = 0x1p-14f;
// A norm is at most k times this.
inline constexpr float kMaxElement = 0x1p15f;
static_assert(kTensorMaxDepth * double{kMaxElement} < 0x1p32, "norms are uint32");

// LineScale is the scale of a line as two factors, because their product may be out of float32's
// range.
struct LineScale {
  float first, second;            // scale
  float undo_first, undo_second;  // 1 / scale
};

// `bits` are the bits of the largest finite |x|.
__device__ inline LineScale ScaleOfMaximum(uint32_t bits) {
  int exponent = 0;
  if (bits != 0) {
    const int log2 = bits >> 23 != 0 ? static_cast<int>(bits >> 23) - 127 : 31 - __clz(bits) - 149;
    exponent = 14 - log2;
  }
  const int half = exponent >> 1, rest = exponent - half;
  return {PowerOfTwo(half), PowerOfTwo(rest), PowerOfTwo(-half), PowerOfTwo(-rest)};
}

struct Pair {
  __half high, low;
};

// LineFacts are the facts that a thread learns about a line while splitting it.
struct LineFacts {
  uint32_t norm = 0;  // sum of the scaled |x|, rounded up to integers: equal in any order
  bool inexact = false;
};

// SplitIntoPair turns a non-finite x into NaN, so that every sum of its line is NaN.
__device__ inline Pair SplitIntoPair(float x, const LineScale& scale, LineFacts& facts) {
  float scaled = x * scale.first * scale.second;
  if (!(fabsf(x) <= 3.402823466e38f)) scaled = __int_as_float(0x7fffffff);
  if (fabsf(scaled) < kLeastExact && x != 0.0f) facts.inexact = true;
  facts.norm += __float2uint_ru(fabsf(scaled));
  const __half high = __float2half_rn(scaled);
  return {high, __float2half_rn((scaled - __half2float(high)) * kLowScale)};
}

// KeepNorm and KeepInexact are called by any threads that know parts of the line.
__device__ inline void KeepNorm(const TensorOperand& operand, int64_t number, uint32_t norm) {
  if (norm != 0) atomicAdd(&operand.norms[number], norm);
}
__device__ inline void KeepInexact(const TensorOperand& operand, int64_t number) {
  operand.inexact[number] = 1;
  operand.tile_inexact[number / kTensorLines] = 1;
}

// StorePairs stores neighbouring k of a line, from `k` of the packed tile on.
template <int kCount>
__device__ inline void StorePairs(char* packed_tile, int line, int k, const float (&v)[kCount],
                                  const LineScale& scale, LineFacts& facts) {
  struct alignas(kCount * 2) Pack {
    __half v[kCount];
  } high, low;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const Pair pair = SplitIntoPair(v[j], scale, facts);
    high.v[j] = pair.high;
    low.v[j] = pair.low;
  }
  char* const place = packed_tile + line * kTensorLineBytes + ((k / 8 ^ line % 8) << 4) + k % 8 * 2;
  *reinterpret_cast<Pack*>(place) = high;
  *reinterpret_cast<Pack*>(place + kPackedHalfBytes) = low;
}

}  // namespace jaxkernels
