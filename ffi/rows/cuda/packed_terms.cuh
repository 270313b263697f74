// The terms exp(factor (x - max)) of losses of half types, from packed elements.
//
// An element takes a widening, an fma, an exp2 and an addition: scaling, subtracting the maximum
// and multiplying by log2(e) are one fma, x * slope - shift. The shift is rounded, so that all
// terms of a row have the same small error, which a correction undoes once per row. Maxima are
// found and counted in pairs of elements, and become -inf before the terms are summed. This costs
// ten instructions per pack; a branch to packs with a maximum costs more in short rows, since
// nearly every pack of a warp takes it.
#pragma once

#include "rows/cuda/row_packs.cuh"

namespace jaxkernels {

// Whether kernels of rows in registers compute an operation's terms by PackedTerms, which cannot
// apply soft caps.
template <typename Op>
inline constexpr bool kPacksTerms =
    kIsHalf<typename Op::Storage> && Op::kTakesLabel && Op::kSums > 2 && !Op::kCaps;

// A mask of the halves in which two words are equal.
__device__ inline uint32_t EqualHalves(__half2 a, __half2 b) { return __heq2_mask(a, b); }
__device__ inline uint32_t EqualHalves(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __heq2_mask(a, b);
}

// The largest element of all packs; -inf if all are NaN.
template <typename T, typename Packs, int kCount>
__device__ float LargestOf(const Packs (&pack)[kCount]) {
  alignas(2 * sizeof(T))
      T max[2] = {static_cast<T>(-kInfinity<float>), static_cast<T>(-kInfinity<float>)};
#pragma unroll
  for (const Packs& one : pack) {
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; j += 2) Max2(max, &one.input[0].element[j]);
  }
  float wide[2];
  Widen2(max, wide);
  return Max(wide[0], wide[1]);
}

template <typename T>
class PackedTerms {
 public:
  static constexpr int kSize = Pack<T>::kSize;

  // `largest` is the maximum of the elements, or 0 if all are -inf once scaled.
  __device__ PackedTerms(float largest, float factor)
      : slope_(factor * kLog2E), shift_(largest * slope_), largest_(static_cast<T>(largest)) {
    constexpr float kLn2 = 0.6931471805599453f;
    float error = fmaf(largest, slope_, -shift_) * -kLn2;
    if (!(fabsf(shift_) < kMostShift)) {
      // Every term but the maxima's is 0, with any slope of this size. A power of two makes the
      // shift exact. It is below the factor, so that the shift is finite if factor * largest is.
      slope_ = 0.5f * __uint_as_float(__float_as_uint(slope_) & 0x7f800000u);
      shift_ = largest * slope_;
      error = shift_ * 0.0f;  // NaN if the shift is not finite
    }
    correction_ = fmaf(fmaf(fmaf(error, 1.0f / 6, 0.5f), error, 1.0f), error, 1.0f);
  }

  // The factor that turns the terms into exp(factor (x - largest)).
  __device__ float Correction() const { return correction_; }

  // The terms of a pack, up to the correction.
  __device__ void Compute(const uint32_t (&word)[4], float (&term)[kSize]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Widen2(reinterpret_cast<const T*>(&word[i]), &term[2 * i]);
    }
#pragma unroll
    for (float& one : term) one = FastExp2(fmaf(one, slope_, -shift_));
  }
  __device__ void Compute(const Pack<T>& pack, float (&term)[kSize]) const {
    Compute(reinterpret_cast<const uint32_t (&)[4]>(pack), term);
  }

  // Adds the terms of a pack to `rest`, but counts those of the maximum.
  __device__ void Add(const Pack<T>& pack, float& rest) {
    const FilledWords<T> hidden(static_cast<T>(-kInfinity<float>));
    const FilledWords<T> largest(largest_);
    uint32_t word[4];
    memcpy(word, &pack, sizeof(word));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t is_max = EqualHalves(reinterpret_cast<const Half2Of<T>&>(word[i]),
                                          reinterpret_cast<const Half2Of<T>&>(largest.word[i]));
      counted_ -= is_max;
      word[i] = (word[i] & ~is_max) | (hidden.word[i] & is_max);
    }
    float term[kSize];
    Compute(word, term);
    rest = RoundedSum(rest, SumPairwise(term));
  }

  // The number of maxima in the packs that were added. A maximum in the low half of a word has
  // added 1 - 2^16 to `counted_`, one in the high half 2^16.
  __device__ float Count() const {
    const int low = static_cast<int>(counted_ & 0xffff), rest = static_cast<int>(counted_) >> 16;
    return static_cast<float>(2 * low + rest);
  }

 private:
  // The largest shift whose error matters. With a larger one, neighbouring elements have exponents
  // of 2 that are 128 apart, also with half of the slope.
  static constexpr float kMostShift = 0x1p20f;

  float slope_, shift_, correction_;
  T largest_;
  uint32_t counted_ = 0;
};

}  // namespace jaxkernels
