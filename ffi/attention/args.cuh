// Kernel arguments of float32 flash attention.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/layout.h"
#include "attention/tiles.h"

namespace jaxkernels {

// SplitOperand is an array (batch, rows, heads, depth) and its split form.
struct SplitOperand {
  const float* data;
  int rows, heads, depth;
  bool packs;  // rows start at 16-byte boundaries
  int blocks;  // of rows of a head
  char* packed;
  int* exponents;

  __device__ int64_t Block(int batch, int head, int block) const {
    return (int64_t{batch} * heads + head) * blocks + block;
  }
  template <int kDepth>
  __device__ const char* Tile(int batch, int head, int block, int half) const {
    using Tile = PackedTile<kDepth>;
    return packed + (Block(batch, head, block) * Tile::kHalves + half) * Tile::kBytes;
  }
};

// StridedScores is a bias or a mask. Strides count elements; they are 0 along broadcast dimensions.
template <typename T>
struct StridedScores {
  const T* data;  // null without one
  int64_t batch, head, row;
  int column;
  bool pairs;  // neighbouring columns can be loaded together

  __device__ const T* Row(const HeadTile& tile, int query) const {
    return data + tile.batch * batch + tile.head * head + query * row;
  }
};

struct AttentionArgs {
  SplitOperand q, k, v;
  StridedScores<float> bias;
  StridedScores<uint8_t> mask;
  const int* q_lengths;  // null without lengths
  const int* k_lengths;
  BandOfKeys band;
  float scale;     // of the scores; times log2(e) without a bias
  int head_group;  // heads of queries that share a head of keys
  float* out;      // (batch, queries, heads, depth of values)
  bool out_pairs;  // neighbouring elements of `out` can be stored together
  // (batch, heads, queries): m and l of FlashAttention, so that a row's probabilities are
  // exp2(score - m) / l, but m is only near the maximum.
  float2* row_sums;
  TileOrder order;

  __device__ static int Length(const int* lengths, int batch, int whole) {
    return lengths == nullptr ? whole : min(max(lengths[batch], 0), whole);
  }
  __device__ KeyRange BlocksOf(const HeadTile& tile) const {
    const int first = tile.index * kBlockRows;
    if (first >= Length(q_lengths, tile.batch, q.rows)) return {0, 0};
    const KeyRange range = KeysOfTile(band, first, Length(k_lengths, tile.batch, k.rows));
    if (range.begin == range.end) return {0, 0};
    return {range.begin / kBlockRows, (range.end - 1) / kBlockRows + 1};
  }
};

}  // namespace jaxkernels
