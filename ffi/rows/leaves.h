// Leaves of a row: the pieces whose sums do not depend on who computes them.
//
// A row that is longer than a warp holds is cut by element index into leaves of as many packs, some
// for each lane of a warp. A warp sums a leaf, relative to the leaf's own maximum, in one order
// (leaf.cuh), and the statistics of the leaves meet in one tree (leaf_tree.cuh). How long a leaf is
// follows from the row's length, dtype and operation, and the GPU (LeafTurns in tier_plans.h). So a
// row gives the same bits in every tier, at every place in memory, and beside any number of rows.
#ifndef JAXKERNELS_ROWS_LEAVES_H_
#define JAXKERNELS_ROWS_LEAVES_H_

#include <cstdint>

#include "core/host_device.h"

namespace jaxkernels {

inline constexpr int kMostLeaves = 1024;

// Leaves of a row, of `turns` packs a lane.
JK_HOST_DEVICE constexpr int64_t CountLeaves(int64_t cols, int pack, int turns) {
  const int64_t elements = int64_t{32} * turns * pack;
  return (cols + elements - 1) / elements;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_LEAVES_H_
