// Leaves of a row: the pieces whose sums do not depend on who computes them.
//
// A row that is longer than a warp holds is cut by element index into leaves of kLeafPacks packs.
// A leaf is summed by one warp, relative to its own maximum, in one order (leaf.cuh). The
// statistics of the leaves meet in one tree, kTreeLeaves at a time (leaf_tree.cuh). So a row gives
// the same bits in every tier, at every place in memory, and beside any number of other rows.
#ifndef JAXKERNELS_ROWS_LEAVES_H_
#define JAXKERNELS_ROWS_LEAVES_H_

#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"

namespace jaxkernels {

// Packs of a leaf that one lane has, and all of them.
inline constexpr int kLeafTurns = 4;
inline constexpr int kLeafPacks = 32 * kLeafTurns;
// Leaves that meet in one tree; the trees of longer rows meet one after the other.
inline constexpr int kTreeLeaves = 256;

JK_HOST_DEVICE constexpr int64_t CountLeaves(int64_t cols, int pack) {
  const int64_t elements = int64_t{kLeafPacks} * pack;
  return (cols + elements - 1) / elements;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_LEAVES_H_
