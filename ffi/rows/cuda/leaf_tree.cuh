// How the statistics of leaves meet: kTreeLeaves at a time in one tree, and one tree after the
// other.
#ifndef JAXKERNELS_ROWS_CUDA_LEAF_TREE_CUH_
#define JAXKERNELS_ROWS_CUDA_LEAF_TREE_CUH_

#include "rows/cuda/leaf.cuh"

namespace jaxkernels {

// The statistics of `count` <= kTreeLeaves leaves, by a warp; valid in all lanes. Lane l takes
// leaves l, l + 32, ..., in this order.
template <typename Op, typename Found>
__device__ RowStatistics<Op> StatisticsOfTree(const Found* leaves, int count) {
  using C = typename Op::C;
  LaneGroup<C, kWarpSize, 1> warp;
  auto found = RowStatistics<Op>::Empty();
  const int lane = threadIdx.x % kWarpSize;
  if constexpr (Op::kUsesMax) {
    for (int i = lane; i < count; i += kWarpSize) found.max = Max(found.max, leaves[i].max);
    found.max = warp.template AllReduce<MaxReduction<C>>(found.max);
  }
  const C reference = found.Reference(found.max);
  for (int i = lane; i < count; i += kWarpSize) {
    RowStatistics<Op> leaf(leaves[i]);
    leaf.MakeRelativeTo(reference);
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) found.sum[s] += leaf.sum[s];
  }
  AllReduceSums(warp, found.sum);
  return found;
}

// The statistics of a row from those of all its leaves, by a warp; valid in all lanes.
template <typename Op, typename Found>
__device__ RowStatistics<Op> StatisticsOfRow(const Found* leaves, int count) {
  auto row = StatisticsOfTree<Op>(leaves, min(count, kTreeLeaves));
  for (int first = kTreeLeaves; first < count; first += kTreeLeaves) {
    row.Merge(StatisticsOfTree<Op>(leaves + first, min(count - first, kTreeLeaves)));
  }
  return row;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_LEAF_TREE_CUH_
