// Which tiles a block computes, and which of their scores are visible.
//
// Owns: the order of the tiles of queries, the range of keys of a tile, and the visible columns of
// a thread. Host and device share these functions, so that they are tested without a GPU. Must not
// know: CUDA, XLA.
#pragma once

#include "attention/layout.h"
#include "core/host_device.h"

namespace jaxkernels {

// No bound on this side of a band. Rows and columns are fewer, so that sums fit in 32 bits.
inline constexpr int kOpenBand = 1 << 30;

JK_HOST_DEVICE inline int MinInt(int a, int b) { return a < b ? a : b; }
JK_HOST_DEVICE inline int MaxInt(int a, int b) { return a > b ? a : b; }

// Query i sees the keys i + left to i + right.
struct BandOfKeys {
  int left = -kOpenBand, right = kOpenBand;
};

// Keys [begin, end).
struct KeyRange {
  int begin, end;
};

// KeysOfRow returns the keys that query i sees. `keys` is at most the length of the keys.
JK_HOST_DEVICE inline KeyRange KeysOfRow(const BandOfKeys& band, int i, int keys) {
  const int begin = MinInt(MaxInt(i + band.left, 0), keys);
  return {begin, MaxInt(begin, MinInt(i + band.right, keys - 1) + 1)};
}

// KeysOfTile returns the keys that any query of [first, first + 128) sees.
JK_HOST_DEVICE inline KeyRange KeysOfTile(const BandOfKeys& band, int first, int keys) {
  const int begin = MinInt(MaxInt(first + band.left, 0), keys);
  return {begin, MaxInt(begin, MinInt(first + kBlockRows - 1 + band.right, keys - 1) + 1)};
}

// QueriesOfKey returns the queries that see key j.
JK_HOST_DEVICE inline KeyRange QueriesOfKey(const BandOfKeys& band, int j, int keys, int queries) {
  const int begin = MinInt(MaxInt(j - band.right, 0), queries);
  return {begin, j < keys ? MaxInt(begin, MinInt(j - band.left, queries - 1) + 1) : begin};
}

// QueriesOfTile returns the queries that see any key of [first, first + 128).
JK_HOST_DEVICE inline KeyRange QueriesOfTile(const BandOfKeys& band, int first, int keys,
                                             int queries) {
  const int last = MinInt(first + kBlockRows, keys) - 1;
  const int begin = MinInt(MaxInt(first - band.right, 0), queries);
  return {begin, last < first ? begin : MaxInt(begin, MinInt(last - band.left, queries - 1) + 1)};
}

// IsWhole tells whether all queries of [first, first + 128) see all keys of a block.
JK_HOST_DEVICE inline bool IsWhole(const BandOfKeys& band, int first, int block, int keys) {
  const int begin = block * kBlockRows, end = begin + kBlockRows;
  return end <= keys && begin >= first + kBlockRows - 1 + band.left &&
         end - 1 <= first + band.right;
}

// A thread has the columns ColumnOf(i) + lane % 4 * 2 of a tile, with element i of its sums.
JK_HOST_DEVICE constexpr int ColumnOf(int i) { return i / 4 * 8 + i % 2; }

// IsVisible tells whether a column lies in the range, which is relative to the thread's first
// column of the tile.
JK_HOST_DEVICE inline bool IsVisible(const KeyRange& range, int column) {
  return static_cast<unsigned>(column - range.begin) <
         static_cast<unsigned>(range.end - range.begin);
}

// HeadTile is a tile of queries, or of keys, of one head.
struct HeadTile {
  int batch, head, index;
};

// TileOrder is the tile scheduler: it maps an index to a tile. Heads come in groups whose keys and
// values fit in the L2. In a group the longest tiles under a causal mask come first: the last ones
// of queries, the first ones of keys.
struct TileOrder {
  int heads, tiles, group;  // heads of a batch member, tiles of a head, heads of a group
  int all_heads;            // of all batch members
  bool of_keys;

  JK_HOST_DEVICE int Count() const { return all_heads * tiles; }
  // IndexOf returns the index of a block's tile in a round: Count() or more after its last. Every
  // other round runs backwards, so that no block has the longest tile of each.
  JK_HOST_DEVICE static int IndexOf(int round, int block, int blocks) {
    return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  }
  JK_HOST_DEVICE HeadTile At(int index) const {
    const int first = index / (group * tiles) * group;
    const int size = MinInt(group, all_heads - first);
    const int rest = index - first * tiles, head = first + rest % size;
    const int place = rest / size;
    return {head / heads, head % heads, of_keys ? place : tiles - 1 - place};
  }
};

}  // namespace jaxkernels
