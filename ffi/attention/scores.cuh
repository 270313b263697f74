// The scores of a tile in registers: products of queries and keys, bias, mask, band.
//
// A warpgroup has 64 queries and 128 keys. Element i of a thread has query lane / 4 + i / 2 % 2 * 8
// of the warp's 16, and key ColumnOf(i) + lane % 4 * 2.
#ifndef JAXKERNELS_ATTENTION_SCORES_CUH_
#define JAXKERNELS_ATTENTION_SCORES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/args.cuh"
#include "core/float_bits.cuh"
#include "core/numeric.cuh"
#include "core/wgmma.cuh"

namespace jaxkernels {

inline constexpr int kScores = 64;  // of a thread

// StartScores starts scores (+)= A B^T over half of the depth: cross products first, because one
// accumulator has them all. `a` is the address of the first of 64 rows of A in a packed tile, `b`
// that of a tile of 128 or 64 rows.
template <int kDepth, int kSums>
__device__ inline void StartScores(float (&scores)[kSums], uint32_t a, uint32_t b, bool keep) {
  using Tile = PackedTile<kDepth>;
  constexpr int kSteps = Tile::kColumns / 16;
  const uint64_t a_high = DescribeTile(a), a_low = DescribeTile(a + Tile::LowOffset(kBlockRows));
  const uint64_t b_high = DescribeTile(b), b_low = DescribeTile(b + Tile::LowOffset(2 * kSums));
  FenceProducts();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t at = i * kDescriptorStep;
    Multiply(scores, a_high + at, b_low + at, keep || i > 0);
    Multiply(scores, a_low + at, b_high + at, true);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t at = i * kDescriptorStep;
    Multiply(scores, a_high + at, b_high + at, true);
  }
  CommitProducts();
}

// FactorOfScores undoes the exponents of two blocks. It is finite and positive: the products of a
// zero score with infinity, and of a hidden one with 0, would be NaN.
__device__ inline float FactorOfScores(float scale, int exponents) {
  const float factor = scale * PowerOfTwo(min(max(-exponents, -126), 127));
  return fminf(fmaxf(factor, PowerOfTwo(-126)), 3.402823466e38f);
}

// ThreadOfTile is a multiplying thread's place in a tile.
struct ThreadOfTile {
  int row, column;  // first query of two, which are 8 apart; first key

  __device__ ThreadOfTile() {
    const int thread = static_cast<int>(threadIdx.x) - 128, lane = thread % 32;
    row = thread / 32 * 16 + lane / 4;
    column = lane % 4 * 2;
  }
};

// AddBias turns scores into factor score + bias log2(e); elements beyond the array get no bias.
__device__ inline void AddBias(const AttentionArgs& args, const QueryTile& tile, int block,
                               const ThreadOfTile& thread, float factor, float (&scores)[kScores]) {
  const int column = block * kBlockRows + thread.column;
  const bool whole = args.bias.pairs && (block + 1) * kBlockRows <= args.k.rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = min(tile.tile * kBlockRows + thread.row + 8 * r, args.q.rows - 1);
    const float* const from = args.bias.Row(tile, query) + column * args.bias.column;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i) {
        const float2 pair = __ldg(reinterpret_cast<const float2*>(from + 8 * i));
        float* const score = &scores[4 * i + 2 * r];
        score[0] = fmaf(score[0], factor, pair.x * kLog2E);
        score[1] = fmaf(score[1], factor, pair.y * kLog2E);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int at = i / 2 * 8 + i % 2;
        float& score = scores[i / 2 * 4 + 2 * r + i % 2];
        const bool exists = column + at < args.k.rows;
        const float bias = exists ? __ldg(from + at * args.bias.column) : 0.0f;
        score = fmaf(score, factor, bias * kLog2E);
      }
    }
  }
}

// LoadMask returns a bit for each key of a query: 1 if the mask lets it see the key.
__device__ inline uint32_t LoadMask(const AttentionArgs& args, const QueryTile& tile, int block,
                                    const ThreadOfTile& thread, int r) {
  const int column = block * kBlockRows + thread.column;
  const int query = min(tile.tile * kBlockRows + thread.row + 8 * r, args.q.rows - 1);
  const uint8_t* const from = args.mask.Row(tile, query) + column * args.mask.column;
  uint32_t bits = 0;
  if (args.mask.pairs && (block + 1) * kBlockRows <= args.k.rows) {
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      const uint32_t pair = __ldg(reinterpret_cast<const uint16_t*>(from + 8 * i));
      bits |= (pair & 1) << 2 * i | (pair >> 8 & 1) << (2 * i + 1);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int at = i / 2 * 8 + i % 2;
      const bool seen = column + at < args.k.rows && __ldg(from + at * args.mask.column) != 0;
      bits |= uint32_t{seen} << i;
    }
  }
  return bits;
}

// HideByMask sets the scores that the mask hides to -inf.
__device__ inline void HideByMask(float (&scores)[kScores], const uint32_t (&bits)[2]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if ((bits[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1) == 0) scores[i] = -kInfinity<float>;
  }
}

// HideByBand sets the scores outside the band, and those of keys beyond `keys`, to -inf.
__device__ inline void HideByBand(float (&scores)[kScores], const AttentionArgs& args,
                                  const QueryTile& tile, int block, int keys,
                                  const ThreadOfTile& thread) {
  if (IsWhole(args.band, tile.tile * kBlockRows, block, keys)) return;
  const int column = block * kBlockRows + thread.column;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    KeyRange range = KeysOfRow(args.band, tile.tile * kBlockRows + thread.row + 8 * r, keys);
    range = {range.begin - column, range.end - column};
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      if (!IsVisible(range, ColumnOf(element))) scores[element] = -kInfinity<float>;
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ATTENTION_SCORES_CUH_
