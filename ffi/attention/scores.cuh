// The scores of a tile in registers: products of queries and keys, bias, mask, band.
//
// A warpgroup has 64 queries and 128 keys. Element i of a thread has query lane / 4 + i / 2 % 2 * 8
// of the warp's 16, and key ColumnOf(i) + lane % 4 * 2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/args.cuh"
#include "core/float_bits.cuh"
#include "core/numeric.cuh"
#include "core/wgmma.cuh"

namespace jaxkernels {

inline constexpr int kScores = 64;  // of a thread

// StartScores starts scores (+)= A B^T over half of the depth: the smaller cross products first,
// because one accumulator has all products. `a` is the address of the first of 64 rows of A in a
// packed tile, `b` that of a tile of 128 or 64 rows.
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

inline constexpr float kLargestFloat = 3.402823466e38f;

// FactorOfScores undoes the exponents of two blocks. It is finite and positive: the products of a
// zero score with infinity, and of a hidden one with 0, would be NaN.
__device__ inline float FactorOfScores(float scale, int exponents) {
  const float factor = scale * PowerOfTwo(min(max(-exponents, -126), 127));
  return fminf(fmaxf(factor, PowerOfTwo(-126)), kLargestFloat);
}

struct ThreadOfTile {
  int row, column;  // first query of two, which are 8 apart; first key

  __device__ ThreadOfTile() {
    const int thread = static_cast<int>(threadIdx.x) - 128, lane = thread % 32;
    row = thread / 32 * 16 + lane / 4;
    column = lane % 4 * 2;
  }
};

// RowBiasMask holds the bias and the mask of 16 scores of a thread: those of one of its two rows,
// in 64 columns. They are garbage beyond the arrays.
struct RowBiasMask {
  float bias[16];
  uint32_t bits;  // 1 if the mask shows the score

  // Apply replaces 16 scores by factor score + bias, and masked ones by -inf. `scores` points to
  // the first. Without a bias they are not multiplied.
  __device__ void Apply(const AttentionArgs& args, float factor, float* scores) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& score = scores[i / 2 * 4 + i % 2];
      if (args.bias.data != nullptr) score = fmaf(score, factor, bias[i]);
      if (args.mask.data != nullptr && (bits >> i & 1) == 0) score = -kInfinity<float>;
    }
  }
};

__device__ inline void LoadBiasMask(const AttentionArgs& args, const HeadTile& tile, int query,
                                    int key, RowBiasMask& bias_mask) {
  query = min(query, args.q.rows - 1);
  const bool whole = key + 64 <= args.k.rows;
  if (args.bias.data != nullptr) {
    const float* const from = args.bias.Row(tile, query);
    if (whole && args.bias.pairs) {
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        const float2 pair = __ldg(reinterpret_cast<const float2*>(from + key + 4 * i));
        bias_mask.bias[i] = pair.x, bias_mask.bias[i + 1] = pair.y;
      }
    } else {
      const int last = (args.k.rows - 1) * args.bias.column;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        bias_mask.bias[i] = __ldg(from + min(key + i / 2 * 8 + i % 2, last));
      }
    }
  }
  if (args.mask.data == nullptr) return;
  const uint8_t* const from = args.mask.Row(tile, query);
  bias_mask.bits = 0;
  if (whole && args.mask.pairs) {
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const uint32_t pair = __ldg(reinterpret_cast<const uint16_t*>(from + key + 4 * i));
      bias_mask.bits |= (pair & 1) << i | (pair >> 8 & 1) << (i + 1);
    }
  } else {
    const int last = (args.k.rows - 1) * args.mask.column;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const bool seen = __ldg(from + min(key + i / 2 * 8 + i % 2, last)) != 0;
      bias_mask.bits |= uint32_t{seen} << i;
    }
  }
}

// TileBiasMask holds the bias and the mask of a thread's 64 scores, in 4 parts: parts 0 and 1 are
// its rows in the first 64 columns. kEarly parts are loaded before the scores are there.
template <int kEarly>
struct TileBiasMask {
  RowBiasMask parts[kEarly];

  __device__ void LoadPart(const AttentionArgs& args, const HeadTile& tile, int block,
                           const ThreadOfTile& thread, int i) {
    LoadBiasMask(args, tile, tile.index * kBlockRows + thread.row + i % 2 * 8,
                 block * kBlockRows + thread.column + i / 2 * 64, parts[i % kEarly]);
  }
  __device__ void Load(const AttentionArgs& args, const HeadTile& tile, int block,
                       const ThreadOfTile& thread) {
#pragma unroll
    for (int i = 0; i < kEarly; ++i) LoadPart(args, tile, block, thread, i);
  }
  // Apply returns the factor of the scores from then on, which gives them in base 2.
  __device__ float Apply(const AttentionArgs& args, const HeadTile& tile, int block,
                         const ThreadOfTile& thread, float factor, float (&scores)[kScores]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      parts[i % kEarly].Apply(args, factor, &scores[i / 2 * 32 + i % 2 * 2]);
      if (i + kEarly < 4) LoadPart(args, tile, block, thread, i + kEarly);
    }
    return args.bias.data != nullptr ? kLog2E : factor;
  }
};

// IsHuge says that float32 does not represent x + 1/2.
__device__ inline bool IsHuge(float x) { return fabsf(x) >= 0x1p23f; }

// ScaledScore returns the rounded product, finite if the score is.
__device__ inline float ScaledScore(float score, float factor) {
  const float product = RoundedProduct(score, factor);
  const bool overflows = isinf(product) && !isinf(score);
  return overflows ? copysignf(kLargestFloat, product) : product;
}

// ScaleHuge returns the factor of the scores of a thread's row r. If the reference that is
// subtracted from them is huge, it scales them and returns 1: a fused product would differ from the
// maximum, which was rounded.
template <int kSums>
__device__ inline float ScaleHuge(float (&scores)[kSums], int r, float factor, bool huge) {
  if (!huge) return factor;
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i) {
    float& score = scores[i / 2 * 4 + 2 * r + i % 2];
    score = ScaledScore(score, factor);
  }
  return 1.0f;
}

// HideByBand sets the scores outside the band, and those beyond the lengths, to -inf.
__device__ inline void HideByBand(float (&scores)[kScores], const AttentionArgs& args,
                                  const HeadTile& tile, int block, int keys,
                                  const ThreadOfTile& thread) {
  const int first = tile.index * kBlockRows;
  const int queries = AttentionArgs::Length(args.q_lengths, tile.batch, args.q.rows);
  const bool all_within = args.q_lengths == nullptr || first + kBlockRows <= queries;
  if (all_within && IsWhole(args.band, first, block, keys)) return;
  const int column = block * kBlockRows + thread.column;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = first + thread.row + 8 * r;
    KeyRange range = KeysOfRow(args.band, query, query < queries ? keys : 0);
    range = {range.begin - column, range.end - column};
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      if (!IsVisible(range, ColumnOf(element))) scores[element] = -kInfinity<float>;
    }
  }
}

}  // namespace jaxkernels
