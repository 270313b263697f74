// Code that both ways to split an operand share: the facts about a line that the product needs, and
// the places of pairs in an image.
//
// Owns: KeepScale, KeepNorm, KeepMark and StorePairs. Must not know: which thread reads what.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_PAIRS_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_PAIRS_CUH_

#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/pair.cuh"

namespace jaxkernels {

// FiniteBits returns the bits of |x|, which have the order of |x|, or 0 if x is not finite.
__device__ inline uint32_t FiniteBits(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffff;
  return bits < 0x7f800000 ? bits : 0;
}

// KeepScale is called by one thread of a line.
__device__ inline void KeepScale(const TensorOperand& operand, int64_t number,
                                 const LineScale& scale) {
  operand.factors[number] = {scale.undo_first, scale.undo_second};
}

// KeepNorm and KeepMark are called by any threads that know parts of the line.
__device__ inline void KeepNorm(const TensorOperand& operand, int64_t number, uint32_t norm) {
  if (norm != 0) atomicAdd(&operand.norms[number], norm);
}
__device__ inline void KeepMark(const TensorOperand& operand, int64_t number) {
  operand.marks[number] = 1;
  operand.tile_marks[number / kTensorLines] = 1;
}

// StorePairs stores neighbouring k of a line, from `k` of the image on.
template <int kCount>
__device__ inline void StorePairs(char* image, int line, int k, const float (&v)[kCount],
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
  char* const place = image + line * kTensorLineBytes + ((k / 8 ^ line % 8) << 4) + k % 8 * 2;
  *reinterpret_cast<Pack*>(place) = high;
  *reinterpret_cast<Pack*>(place + kTensorPartBytes) = low;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_PAIRS_CUH_
