// Checks the index arithmetic of ffi/attention on the CPU. Prints the first failure.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attention/layout.h"
#include "attention/tiles.h"

using namespace jaxkernels;

namespace {

void Require(bool holds, const char* what, int a = 0, int b = 0, int c = 0) {
  if (holds) return;
  std::printf("%s: %d %d %d\n", what, a, b, c);
  std::exit(1);
}

void CheckOrder() {
  for (const int heads : {1, 3, 16}) {
    for (const int tiles : {1, 2, 7}) {
      for (const int group : {1, 2, 5, 48}) {
        const TileOrder order = {heads, tiles, std::min(group, 3 * heads), 3 * heads, group == 2};
        std::vector<int> seen(order.Count());
        for (int i = 0; i < order.Count(); ++i) {
          const QueryTile tile = order.At(i);
          const bool fits = tile.batch >= 0 && tile.batch < 3 && tile.head >= 0 &&
                            tile.head < heads && tile.tile >= 0 && tile.tile < tiles;
          Require(fits, "a tile outside the problem", heads, tiles, i);
          ++seen[(tile.batch * heads + tile.head) * tiles + tile.tile];
        }
        for (const int count : seen)
          Require(count == 1, "tiles that occur once", heads, tiles, group);
      }
    }
  }
}

void CheckBands() {
  const int open = kOpenBand;
  for (const int left : {-open, -300, -128, -9, 0, 140}) {
    for (const int right : {open, 200, 127, 0, -3}) {
      const BandOfKeys band = {left, right};
      for (const int keys : {0, 1, 127, 128, 300, 513}) {
        for (int first = 0; first < 640; first += kBlockRows) {
          const KeyRange all = KeysOfTile(band, first, keys);
          for (int block = 0; block * kBlockRows < keys; ++block) {
            bool whole = true, any = false;
            for (int i = first; i < first + kBlockRows; ++i) {
              const KeyRange row = KeysOfRow(band, i, keys);
              // A thread's range is relative to its first column.
              const int column = block * kBlockRows + 2 * (i % 4);
              const KeyRange own = {row.begin - column, row.end - column};
              for (int j = block * kBlockRows; j < (block + 1) * kBlockRows; ++j) {
                const bool sees = j < keys && j >= i + left && j <= i + right;
                whole = whole && sees, any = any || sees;
                Require(!sees || (j >= all.begin && j < all.end), "a key outside its tile", i, j);
                Require((j >= row.begin && j < row.end) == sees, "the keys of a row", i, j);
                const int queries = 500;
                const KeyRange column_of = QueriesOfKey(band, j, keys, queries);
                const KeyRange tile = QueriesOfTile(band, block * kBlockRows, keys, queries);
                const bool seen = sees && i < queries;
                Require((i >= column_of.begin && i < column_of.end) == seen, "queries", i, j, keys);
                Require(!seen || (i >= tile.begin && i < tile.end), "queries of a tile", i, j);
                Require(IsVisible(own, j - column) == sees, "a visible key", i, j);
              }
            }
            Require(IsWhole(band, first, block, keys) == whole, "a whole block", first, block,
                    keys);
          }
        }
      }
    }
  }
}

// Element (row, column) of a part of a tile, as the tensor cores find it from a descriptor with the
// 128-byte swizzle, groups of 8 lines 1024 bytes apart: bits 7 to 9 of an address flip bits 4 to 6.
int Swizzled(int address) { return address ^ (address >> 7 & 7) << 4; }
int KMajor(int line, int step, int k) { return Swizzled(step * 32 + line * 128 + k * 2); }
int MNMajor(int column, int step, int k) {
  return Swizzled(step * 16 * 128 + k / 8 * 1024 + k % 8 * 128 + column * 2);
}
int Place(int row, int column) { return PlaceOfChunk(row, column / 8) + column % 8 * 2; }

void CheckPlaces() {
  for (int row = 0; row < kBlockRows; ++row) {
    for (int column = 0; column < kHalfDepth; ++column) {
      const int place = Place(row, column);
      Require(place == KMajor(row, column / 16, column % 16), "a K-major element", row, column);
      Require(place == MNMajor(column, row / 16, row % 16), "an MN-major element", row, column);
    }
  }
}

// Pair p of a thread's sums is register p % 4 of operand A of step p / 4 (PTX ISA, wgmma, m64k16).
void CheckFragments() {
  for (int lane = 0; lane < 32; ++lane) {
    for (int element = 0; element < 64; ++element) {
      const int pair = element / 2, step = pair / 4, index = pair % 4;
      const int row = lane / 4 + element / 2 % 2 * 8;
      const int column = ColumnOf(element) + lane % 4 * 2;
      const int row_of_a = lane / 4 + (index % 2) * 8;
      const int column_of_a = step * 16 + lane % 4 * 2 + index / 2 * 8 + element % 2;
      Require(row == row_of_a && column == column_of_a, "an operand in registers", lane, element);
    }
  }
}

void CheckScratch() {
  const AttentionScratch scratch = MakeAttentionScratch(3, 300, 129, 4, 2, 128, true);
  Require(scratch.q.blocks == 3 * 4 * 3 && scratch.k.blocks == 3 * 2 * 2, "blocks");
  Require(scratch.k.packed >= scratch.q.exponents + scratch.q.blocks * 4, "places");
  Require(scratch.v.packed >= scratch.k.packed + scratch.k.blocks * BytesOfBlock(128), "places");
  Require(scratch.facts >= scratch.g.exponents + scratch.g.blocks * 4, "places");
  Require(scratch.bytes >= scratch.facts + scratch.g.blocks * kBlockRows * kRowFactsBytes, "bytes");
}

}  // namespace

int main() {
  CheckOrder();
  CheckBands();
  CheckPlaces();
  CheckFragments();
  CheckScratch();
}
