// The pass before the kernels: splits queries, keys and values into pairs of float16.
//
// x 2^e = high + low. The exponent e of a block of rows brings its largest element into
// [2^14, 2^15). A pair keeps 22 bits of elements down to 2^-17 of the largest; smaller ones have an
// error of at most 2^-40 of it. Rows beyond the lengths become zeros, whatever they have.
//
// Work split: a block of threads has a block of rows of one head. Each element is read once.
#pragma once

#include <cuda_fp16.h>

#include "attention/args.cuh"
#include "core/float_bits.cuh"

namespace jaxkernels {

// Neighbouring elements of a row that a thread splits: 16 bytes of each part.
inline constexpr int kSplitElements = 8;

struct HalfPairs {
  uint32_t high, low;
};
__device__ inline HalfPairs SplitPair(float x, float y) {
  const __half2 high = __floats2half2_rn(x, y);
  const float2 rounded = __half22float2(high);
  const __half2 low = __floats2half2_rn(x - rounded.x, y - rounded.y);
  return {*reinterpret_cast<const uint32_t*>(&high), *reinterpret_cast<const uint32_t*>(&low)};
}

// ExponentOf returns e for the bits of the largest finite |x|. It is at most 126, so that 2^e and
// 2^-e are normal numbers.
__device__ inline int ExponentOf(uint32_t bits) {
  return min(14 - (static_cast<int>(bits >> 23) - 127), 126);
}

__device__ inline uint32_t LargestOfBlock(uint32_t largest) {
  __shared__ uint32_t of_warp[kSplitAttentionThreads / 32];
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (const uint32_t other : of_warp) largest = max(largest, other);
  return largest;
}

// LoadChunk loads 8 elements, zeros after the first `valid`.
__device__ inline void LoadChunk(const float* from, int valid, bool packs,
                                 float (&v)[kSplitElements]) {
  if (packs && valid >= kSplitElements) {
#pragma unroll
    for (int j = 0; j < kSplitElements; j += 4) {
      const float4 quad = __ldg(reinterpret_cast<const float4*>(from + j));
      v[j] = quad.x, v[j + 1] = quad.y, v[j + 2] = quad.z, v[j + 3] = quad.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSplitElements; ++j) v[j] = j < valid ? __ldg(from + j) : 0.0f;
  }
}

// StorePairs stores the 8 elements from 8 chunk on of a row in the packed tiles of its block.
template <int kDepth>
__device__ inline void StorePairs(const float (&v)[kSplitElements], char* tiles, int row,
                                  int chunk) {
  using Tile = PackedTile<kDepth>;
  uint4 high, low;
  uint32_t* const high_words = &high.x;
  uint32_t* const low_words = &low.x;
#pragma unroll
  for (int j = 0; j < kSplitElements; j += 2) {
    const HalfPairs pairs = SplitPair(v[j], v[j + 1]);
    high_words[j / 2] = pairs.high, low_words[j / 2] = pairs.low;
  }
  char* const tile = tiles + chunk / 8 * Tile::kBytes;
  *reinterpret_cast<uint4*>(tile + PlaceOfChunk(row, chunk % 8)) = high;
  *reinterpret_cast<uint4*>(tile + Tile::PlaceOfLow(row, chunk % 8)) = low;
}

template <int kDepth>
__device__ inline void SplitRows(const SplitOperand& operand, const int* lengths, unsigned block) {
  constexpr int kChunks = kDepth / kSplitElements;  // of a row
  constexpr int kCount = kBlockRows * kChunks / kSplitAttentionThreads;
  const unsigned head = block / operand.blocks;
  const unsigned batch = head / operand.heads;
  const int first = static_cast<int>(block % operand.blocks) * kBlockRows;
  const int64_t pitch = int64_t{operand.heads} * operand.depth;
  const float* const from = operand.data + (int64_t{batch} * operand.rows + first) * pitch +
                            int64_t{head % operand.heads} * operand.depth;
  const int length = AttentionArgs::Length(lengths, static_cast<int>(batch), operand.rows);
  float v[kCount][kSplitElements];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int index = i * kSplitAttentionThreads + static_cast<int>(threadIdx.x);
    const int row = index / kChunks, column = index % kChunks * kSplitElements;
    const float* const at = from + row * pitch + column;
    LoadChunk(at, first + row < length ? operand.depth - column : 0, operand.packs, v[i]);
#pragma unroll
    for (const float x : v[i]) largest = max(largest, FiniteBits(x));
  }
  const int exponent = ExponentOf(LargestOfBlock(largest));
  if (threadIdx.x == 0) operand.exponents[block] = exponent;
  const float scale = PowerOfTwo(exponent);
  char* const tiles = operand.packed + int64_t{block} * BytesOfBlock(kDepth);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int index = i * kSplitAttentionThreads + static_cast<int>(threadIdx.x);
#pragma unroll
    for (float& x : v[i]) x *= scale;
    StorePairs<kDepth>(v[i], tiles, index / kChunks, index % kChunks);
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kSplitAttentionThreads)
    SplitAttention(const __grid_constant__ AttentionArgs args, unsigned blocks_q,
                   unsigned blocks_k) {
  if (blockIdx.x < blocks_q) {
    SplitRows<kDepth>(args.q, args.q_lengths, blockIdx.x);
  } else if (blockIdx.x < blocks_q + blocks_k) {
    SplitRows<kDepth>(args.k, args.k_lengths, blockIdx.x - blocks_q);
  } else {
    SplitRows<kDepth>(args.v, args.k_lengths, blockIdx.x - blocks_q - blocks_k);
  }
}

}  // namespace jaxkernels
