// The pass over dO: splits dO / l into pairs of float16, and computes delta.
//
// Result valid in: args.g, args.stats.
#pragma once

#include "attention/backward.cuh"

namespace jaxkernels {

// SplitGradient splits a block of rows of dO / l, and computes the RowStats of its rows.
template <int kDepth>
__global__ void __launch_bounds__(kSplitAttentionThreads)
    SplitGradient(const __grid_constant__ GradientArgs args) {
  constexpr int kChunks = kDepth / kSplitElements;  // lanes of a row
  constexpr int kRowsAtOnce = kSplitAttentionThreads / kChunks, kCount = kBlockRows / kRowsAtOnce;
  const SplitOperand& g = args.g;
  const int64_t block = blockIdx.x;
  const int first = static_cast<int>(block % g.blocks) * kBlockRows;
  const int64_t all_head = block / g.blocks;
  const int batch = static_cast<int>(all_head / g.heads),
            head = static_cast<int>(all_head % g.heads);
  const int chunk = threadIdx.x % kChunks, column = chunk * kSplitElements;
  const int least_v = LeastExponent(args.forward.v, batch, head / args.forward.head_group);
  char* const tiles = g.packed + block * BytesOfBlock(kDepth);
  int exponents[kCount];
  int least = 1 << 20;
  bool huge = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    const int row = first + local;
    const int64_t at = ((int64_t{batch} * g.rows + row) * g.heads + head) * g.depth + column;
    float v[kSplitElements], out[kSplitElements];
    uint32_t largest = 0;
    const float2 sums = row < g.rows ? __ldg(&args.forward.row_sums[all_head * g.rows + row])
                                     : make_float2(0.0f, 0.0f);
    const bool sees = sums.y != 0.0f, is_nan = isnan(sums.y);
    const int valid = sees ? g.depth - column : 0;  // dO of other rows may be NaN
    LoadChunk(g.data + at, valid, g.packs, v);
    LoadChunk(args.out + at, valid, g.packs, out);
#pragma unroll
    for (const float x : v) largest = max(largest, FiniteBits(x));
#pragma unroll
    for (int lane = 1; lane < kChunks; lane *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lane));
    }
    const int exponent = ExponentOf(largest);
    const uint32_t bits = __float_as_uint(sums.y);  // l = 2^power mantissa
    const int power = sees && !is_nan ? static_cast<int>(bits >> 23) - 127 : 0;
    const float mantissa =
        is_nan ? sums.y : __uint_as_float((sees ? bits & 0x7fffff : 0) | 0x3f800000);
    float delta = 0.0f;
#pragma unroll
    for (int j = 0; j < kSplitElements; ++j) {
      v[j] = v[j] * PowerOfTwo(exponent) / mantissa;
      delta = fmaf(v[j], out[j] * PowerOfTwo(least_v), delta);
    }
    StorePairs<kDepth>(v, tiles, local, chunk);
#pragma unroll
    for (int lane = 1; lane < kChunks; lane *= 2) delta += __shfl_xor_sync(~0u, delta, lane);
    exponents[i] = exponent + power;
    if (sees) least = min(least, exponents[i]);
    huge |= sees && IsHuge(sums.x);
    if (chunk == 0) {
      args.stats[block * kBlockRows + local] = {-kInfinity<float>, sees ? sums.x : kInfinity<float>,
                                                delta, exponents[i]};
    }
  }
  // LargestOfBlock takes positive numbers.
  const int reference =
      (1 << 20) - static_cast<int>(LargestOfBlock(static_cast<uint32_t>((1 << 20) - least)));
  const int any_huge = __syncthreads_or(huge) != 0;
  if (threadIdx.x == 0) g.exponents[block] = 2 * reference + any_huge;
  if (chunk != 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    RowStats& stats = args.stats[block * kBlockRows + local];
    if (stats.m != kInfinity<float>) stats.shift = static_cast<float>(reference - exponents[i]);
  }
}

}  // namespace jaxkernels
