// The layout of the split operands of float32 flash attention, and of the scratch.
//
// Owns: the sizes of tiles, and the offsets in the scratch. Must not know: CUDA, XLA.
//
// An operand becomes packed tiles, in the order [batch][head][block of rows][half of the depth]. A
// packed tile is 128 rows x 64 elements of the depth: first the high parts, then the low parts, in
// the layout of core/wgmma.cuh. Depths up to 32 have lines of 32 high parts and 32 low parts.
// Elements beyond the operand are zero. Each block of rows has an exponent: its elements are
// multiplied by that power of two before they are split.
#pragma once

#include <cstdint>

#include "core/ceil_div.h"
#include "core/host_device.h"

namespace jaxkernels {

inline constexpr int kBlockRows = 128;  // queries of a tile, and keys
inline constexpr int kHalfDepth = 64;   // elements of the depth in a packed tile
inline constexpr int kRowBytes = kHalfDepth * 2;
inline constexpr int kPairPartBytes = kBlockRows * kRowBytes;

// PlaceOfChunk returns the offset of elements [8 chunk, 8 chunk + 8) of a row in a part of a tile.
JK_HOST_DEVICE constexpr int PlaceOfChunk(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ row % 8) << 4);
}

inline constexpr int kMaxDepth = 128;
constexpr int PaddedDepth(int64_t depth) { return depth > 64 ? 128 : depth > 32 ? 64 : 32; }

template <int kDepth>
struct PackedTile {
  static constexpr bool kSharesLines = kDepth < kHalfDepth;  // high and low parts do
  static constexpr int kParts = kSharesLines ? 1 : 2;
  static constexpr int kBytes = kParts * kPairPartBytes;
  static constexpr int kHalves = kDepth > kHalfDepth ? 2 : 1;  // tiles of a block of rows
  static constexpr int kColumns = kDepth / kHalves;            // elements of the depth

  // LowOffset returns the bytes from the high to the low part of an element in a tile of `rows`.
  JK_HOST_DEVICE static constexpr int LowOffset(int rows) {
    return kSharesLines ? kRowBytes / 2 : rows * kRowBytes;
  }
  JK_HOST_DEVICE static constexpr int PlaceOfLow(int row, int chunk) {
    return kSharesLines ? PlaceOfChunk(row, chunk + 4) : kPairPartBytes + PlaceOfChunk(row, chunk);
  }
};
JK_HOST_DEVICE constexpr int BytesOfBlock(int padded_depth) {
  return kBlockRows * padded_depth * 4;
}

inline constexpr int kTilesInSmem = 7;  // of up to 32 KiB; a Hopper block has up to 227 KiB
constexpr int AttentionSmemBytes(int padded_depth) {
  return kTilesInSmem * BytesOfBlock(padded_depth < kHalfDepth ? padded_depth : kHalfDepth) + 1024;
}
inline constexpr int kAttentionThreads = 384;  // one warpgroup copies, two multiply
inline constexpr int kMultiplyingWarps = 8;

inline constexpr int kSplitAttentionThreads = 256;

struct SplitPlaces {
  int64_t blocks;     // of rows, in all heads of all batch members
  int64_t packed;     // BytesOfBlock a block
  int64_t exponents;  // int32 a block
};

// Offsets in bytes from the start of the scratch, all of them multiples of 1024.
struct AttentionScratch {
  SplitPlaces q, k, v;
  SplitPlaces g;  // dO, in the backward pass only
  int64_t stats;  // RowStats of each row of g
  int64_t bytes;
};

inline constexpr int kRowStatsBytes = 16;

inline AttentionScratch MakeAttentionScratch(int64_t batch, int64_t queries, int64_t keys,
                                             int64_t heads, int64_t key_heads, int padded_depth,
                                             bool backward) {
  AttentionScratch scratch = {};
  const auto take = [&](int64_t bytes) {
    const int64_t place = scratch.bytes;
    scratch.bytes += CeilDiv(bytes, 1024) * 1024;
    return place;
  };
  const auto take_split = [&](SplitPlaces& split, int64_t rows, int64_t heads_of_operand) {
    split.blocks = batch * heads_of_operand * CeilDiv(rows, kBlockRows);
    split.packed = take(split.blocks * BytesOfBlock(padded_depth));
    split.exponents = take(split.blocks * 4);
  };
  take_split(scratch.q, queries, heads);
  take_split(scratch.k, keys, key_heads);
  take_split(scratch.v, keys, key_heads);
  if (backward) {
    take_split(scratch.g, queries, heads);
    scratch.stats = take(scratch.g.blocks * kBlockRows * kRowStatsBytes);
  }
  return scratch;
}

}  // namespace jaxkernels
