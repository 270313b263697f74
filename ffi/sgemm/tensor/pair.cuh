// A float32 as a pair of float16: x * scale = high + low / 2^11.
//
// Owns: the arithmetic of pairs and of the scales of lines. Must not know: where they are stored.
//
// A line is scaled by a power of two so that its largest finite element lies in [2^14, 2^15). Then
// high <= 2^15, |x - high| <= 8 and |low| <= 2^14. A pair keeps 23 bits of every element of at
// least 2^-13 (2^-28 of the largest); below, high and low lose bits to the smallest float16, 2^-24,
// and the error is at most 2^-36.
#ifndef JAXKERNELS_SGEMM_TENSOR_PAIR_CUH_
#define JAXKERNELS_SGEMM_TENSOR_PAIR_CUH_

#include <cuda_fp16.h>

#include <cstdint>

namespace jaxkernels {

inline constexpr float kLowScale = 2048.0f;
inline constexpr float kLeastExact = 0x1p-13f;

// A scaled sum of a marked line (one that has a non-zero element below kLeastExact) is uncertain if
// it is smaller. What the line's pairs lack is at most 2^-36 * 2^15 for every term, and 2^-21 k is
// a sixteenth of float32's k eps |sum|. Simulated for lognormal(4) operands, k 16 to 4096, the
// largest |C - C64| / (|A| |B|) that pairs make is 4.2e-7.
inline constexpr float kThresholdOfMarked = 128.0f;
// Thresholds of both lines are added. A line of zeros makes exact zeros.
inline constexpr float kThresholdOfZeros = -1e30f;

// 2^exponent. Requires: -126 <= exponent <= 127.
__device__ inline float PowerOfTwo(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The scale of a line in two halves, as the whole one may be no float32.
struct LineScale {
  float first, second;            // scale
  float undo_first, undo_second;  // 1 / scale
};

// `bits` are those of the largest finite |x|.
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

// A non-finite x becomes NaN, with which every sum of its line is NaN. `marks` is set if the pair
// holds fewer than 23 bits.
__device__ inline Pair SplitIntoPair(float x, const LineScale& scale, bool& marks) {
  float scaled = x * scale.first * scale.second;
  if (!(fabsf(x) <= 3.402823466e38f)) scaled = __int_as_float(0x7fffffff);
  if (fabsf(scaled) < kLeastExact && x != 0.0f) marks = true;
  const __half high = __float2half_rn(scaled);
  return {high, __float2half_rn((scaled - __half2float(high)) * kLowScale)};
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_PAIR_CUH_
