// Tier `block_uncached` of operations that reduce a row to a few numbers: it is read once, and
// nothing of it is kept.
//
// Work split: the window of a row is cut into leaves, args.leaf_turns times kOneReadPacks packs for
//   each lane of a warp. Warps of a row take its leaves in turns, and one of them merges what they
//   found. Few rows have several blocks each, a cluster, whose first block gets all statistics.
// Memory: one read per element, kOneReadPacks packs of a thread in flight.
// Order: that of the leaves. They begin with a cache line, so a row gives the same bits beside any
//   number of rows, whatever number of warps and blocks share it.
// Digits: a loss is log S, S = sum exp(x - max). Where S is nearly 1, S - 1 has to be summed
//   without the term of the maximum. Only below 2, and only the leaf of the maximum is read again
//   for that.
// Requires: at most kMostReadLeaves leaves in a window that begins with a line; blockDim.x is a
// multiple of 32; a cluster for each row, if there are clusters.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_ONE_READ_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_ONE_READ_CUH_

#include "core/cluster.cuh"
#include "rows/cuda/leaf.cuh"
#include "rows/long_row_rules.h"

namespace jaxkernels {

// The statistics of a leaf, by a warp; valid in all lanes. kCounts: the terms of the maximum are
// counted apart, if `counts`, and all sums are made that the operation wants. Otherwise the first
// sum has all terms, and there is no other.
template <bool kCounts, typename Op>
__device__ RowStatistics<Op> StatisticsOfPacks(const RowArgs<Op>& args,
                                               const RowView<Op, false>& view, int leaf,
                                               bool counts) {
  using C = typename Op::C;
  LaneGroup<kWarpSize, 1> warp;
  const int lane = threadIdx.x % kWarpSize;
  Op op = args.op;
  if constexpr (Op::kTakesLabel && !kCounts) op.Want(false);
  auto found = RowStatistics<Op>::Empty();
#pragma unroll 1
  for (int turn = 0; turn < args.leaf_turns; ++turn) {
    const int first = (leaf * args.leaf_turns + turn) * kOneReadPacks * kWarpSize + lane;
    InputPacks<Op> pack[kOneReadPacks];
    TakePacks<Inputs::kOnPacks>(pack, args, view, first, kWarpSize);
    auto of_turn = RowStatistics<Op>::Empty();
#pragma unroll
    for (auto& one : pack) {
      of_turn.max = Max(of_turn.max, MaxOfPacks(op, one));
      ForgetPacks<Op>(one);
    }
    of_turn.max = AllReduce<MaxReduction<C>>(warp, of_turn.max);
    const C reference = of_turn.Reference(of_turn.max);
#pragma unroll
    for (auto& one : pack) {
      C term[Pack<typename Op::Storage>::kSize];
      AddPacks(op, one, reference, term, of_turn.sum, kCounts && counts);
      ForgetPacks<Op>(one);
    }
    if constexpr (kCounts) {
      AllReduceSums(op, warp, of_turn);
    } else {
      of_turn.sum[0] = AllReduce<SumReduction<C>>(warp, of_turn.sum[0]);
    }
    found.Merge(of_turn);
  }
  return found;
}

// The same, of what the operation wants of a leaf before its row is known.
template <typename Op>
__device__ RowStatistics<Op> ReadLeaf(const RowArgs<Op>& args, const RowView<Op, false>& view,
                                      int leaf) {
  if constexpr (Op::kTakesLabel) {
    if (args.op.all_sums) return StatisticsOfPacks<true>(args, view, leaf, false);
  }
  return StatisticsOfPacks<false>(args, view, leaf, false);
}

// The statistics of a row from those of its leaves, by a warp; valid in all lanes. Of a loss, with
// the terms of the maximum counted.
template <typename Op>
__device__ RowStatistics<Op> StatisticsOfRow(const RowArgs<Op>& args,
                                             const RowView<Op, false>& view,
                                             typename Op::Found* leaves, int count) {
  auto found = StatisticsOfLeaves<Op>(leaves, count);
  if constexpr (Op::kTakesLabel) {
    if (!Op::NeedsCount(found)) {
      Op::CountOneMax(found);
      return found;
    }
    const int lane = threadIdx.x % kWarpSize;
    int winner = -1;
    for (int i = lane; i < count; i += kWarpSize) {
      if (leaves[i].max == found.max) winner = i;
    }
    const unsigned has_winner = __ballot_sync(0xffffffffu, winner >= 0);
    winner = __shfl_sync(0xffffffffu, winner, __ffs(static_cast<int>(has_winner)) - 1);
    const auto again = StatisticsOfPacks<true>(args, view, winner, true);
    if (lane == 0) leaves[winner] = again;
    __syncwarp();
    found = StatisticsOfLeaves<Op>(leaves, count);
  }
  return found;
}

template <typename Op>
__global__ void __maxnreg__(kOneReadRegisters) OneReadKernel(RowArgs<Op> args) {
  __shared__ typename Op::Found leaves[kMostReadLeaves];
  __shared__ uint64_t arrived;
  const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  const int warp = ClusterRank() * warps + threadIdx.x / kWarpSize;
  const int leaf_packs = args.leaf_turns * kOneReadPacks * kWarpSize;

  for (int64_t row = ClusterIndex(); row < args.rows; row += gridDim.x / ClusterBlocks()) {
    const int label = args.LabelOf(row);
    const auto view = RowView<Op, false>(args, row).StartAtLine();
    const int count = (view.packs + leaf_packs - 1) / leaf_packs;
    ClusterInbox<typename Op::Found> inbox(leaves, arrived, count);
    for (int leaf = warp; leaf < count; leaf += warps * ClusterBlocks()) {
      const auto found = ReadLeaf(args, view, leaf);
      if (leaf == warp) inbox.WaitForBlocks();
      if (lane == 0) inbox.Send(leaf, found);
    }
    if (warp >= count) inbox.WaitForBlocks();
    if (ClusterRank() > 0) return;
    GivenRow<Op> given;  // asked for before the wait
    if (warp == 0) given = args.GivenOf(row, label);
    inbox.Wait();
    if (warp == 0) {
      auto found = StatisticsOfRow(args, view, leaves, count);
      found.max = Op::Reference(found.max);
      const typename Op::Row constants = RowOf<Op>(found, given);
      if (lane == 0) args.StoreScalars(row, constants.scalars);
    }
    __syncthreads();  // before the leaves of another row
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_ONE_READ_CUH_
