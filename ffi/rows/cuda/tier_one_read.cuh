// Tier `block_uncached` for operations that reduce a row to a few numbers: a single pass that keeps
// nothing of the row.
//
// Work split: the window of a row is cut into leaves (warp tiles) of args.leaf_turns *
// kOneReadPacks packs per lane. The warps of a row take its leaves round-robin, and one warp merges
// their statistics. With few rows, each row has a cluster of several blocks, whose first block
// receives all statistics.
// Memory: one read per element, with kOneReadPacks packs per thread in flight.
// Order: that of the leaves, which begin at a cache line. So a row's bits do not depend on the
// number of rows, warps or blocks.
// Digits: a loss is log S, S = sum exp(x - max). If S is nearly 1, S - 1 must be summed without the
// term of the maximum. The packs that a warp reads at once and that hold the maximum then have a
// sum below 2 too. So a warp re-reads packs with such a sum immediately, and counts their maxima
// separately.
// Requires: at most kMostReadLeaves leaves in a window that begins at a cache line; blockDim.x is a
// multiple of 32; one cluster per row, if there are clusters.
#pragma once

#include "core/cluster.cuh"
#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/long_row_rules.h"

namespace jaxkernels {

// Computes the statistics of a leaf with a warp; valid in all lanes.
template <typename Op>
__device__ RowStatistics<Op> ReadLeaf(const RowArgs<Op>& args, const Op& op,
                                      const RowView<Op, false>& view, int leaf) {
  using C = typename Op::C;
  LaneGroup<kWarpSize, 1> warp;
  const int lane = threadIdx.x % kWarpSize;
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
    C largest = of_turn.max;
    of_turn.max = ReduceMax(op, warp, largest);
    const C reference = of_turn.Reference(of_turn.max);
    const auto add_packs = [&](const Op& with, const auto& terms, C(&sum)[Op::kSums],
                               bool counts_max) {
#pragma unroll
      for (auto& one : pack) {
        C term[Pack<typename Op::Storage>::kSize];
        AddPacks(with, terms, one, reference, term, sum, counts_max);
        ForgetPacks<Op>(one);
      }
    };
    // The terms of -inf, which CappedTerms do not remove here, are exp(-range - max) each. If that
    // is small they do not change a sum of 2 or more; with a smaller sum all are read again.
    bool are_small = false;
    if constexpr (kMayShareReciprocals<Op>) are_small = of_turn.max + op.scale.range >= 28;
    WithTerms<false>(op, of_turn.max, largest, are_small && !MakesAllSums(op),
                     [&](const auto& terms) { add_packs(op, terms, of_turn.sum, false); });
    if (MakesAllSums(op)) {
      AllReduceSums(op, warp, of_turn);
    } else {
      of_turn.sum[0] = AllReduce<SumReduction<C>>(warp, of_turn.sum[0]);
    }
    if constexpr (Op::kTakesLabel) {
      if (Op::NeedsCount(of_turn)) {
        Op two = op;
        two.Want(false);
        auto counted = RowStatistics<Op>::Empty();
        TakePacks<Inputs::kOnPacks>(pack, args, view, first, kWarpSize);
        WithTerms(two, of_turn.max, largest, !MakesAllSums(op),
                  [&](const auto& terms) { add_packs(two, terms, counted.sum, true); });
        AllReduceSums(two, warp, counted);
        of_turn.sum[0] = counted.sum[0], of_turn.sum[1] = counted.sum[1];
      }
    }
    found.Merge(of_turn);
  }
  return found;
}

// Combines the statistics of the `count` leaves of a row with a warp; valid in all lanes. Lane l
// adds leaves l, l + 32, ... in this order, and then the lanes are reduced in one tree.
template <typename Op, typename Found>
__device__ RowStatistics<Op> StatisticsOfLeaves(const Found* leaves, int count) {
  using C = typename Op::C;
  using Exact = typename Op::Found::Exact;
  LaneGroup<kWarpSize, 1> warp;
  auto found = RowStatistics<Op>::Empty();
  const int lane = threadIdx.x % kWarpSize;
  if constexpr (Op::kUsesMax) {
    for (int i = lane; i < count; i += kWarpSize) found.max = Max(found.max, leaves[i].max);
    found.max = AllReduce<MaxReduction<C>>(warp, found.max);
  }
  const C reference = found.Reference(found.max);
  for (int i = lane; i < count; i += kWarpSize) {
    RowStatistics<Op> leaf(leaves[i]);
    leaf.MakeRelativeTo(reference);
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) {
      found.SetSum(s, SumReduction<Exact>::Combine(found.ExactSum(s), leaf.ExactSum(s)));
    }
  }
  AllReduceExactSums(warp, found);
  return found;
}

// As StatisticsOfLeaves; for a loss it also ensures that the maximum is counted.
template <typename Op>
__device__ RowStatistics<Op> StatisticsOfRow(const typename Op::Found* leaves, int count) {
  auto found = StatisticsOfLeaves<Op>(leaves, count);
  if constexpr (Op::kTakesLabel) {
    if (found.sum[1] == 0) Op::CountOneMax(found);
  }
  return found;
}

template <typename Op>
inline constexpr int kReadSmemBytes =
    ReadSmemBytes(StatisticsBytes(Op::kOperation, kDTypeOf<typename Op::Storage>));

template <typename Op>
__global__ void __maxnreg__(kOneReadRegisters) OneReadKernel(RowArgs<Op> args) {
  __shared__ typename Op::Found leaves[kMostReadLeaves];
  __shared__ uint64_t arrived;
  static_assert(sizeof(leaves) + sizeof(arrived) == kReadSmemBytes<Op>);
  const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  const int warp = ClusterRank() * warps + threadIdx.x / kWarpSize;
  const int leaf_packs = args.leaf_turns * kOneReadPacks * kWarpSize;

  for (int64_t row = ClusterIndex(); row < args.rows; row += gridDim.x / ClusterBlocks()) {
    const int label = args.LabelOf(row);
    const auto& op = args.OpOf(row);
    const auto view = RowView<Op, false>(args, row).StartAtLine();
    const int count = (view.packs + leaf_packs - 1) / leaf_packs;
    ClusterInbox<typename Op::Found> inbox(leaves, arrived, count);
    for (int leaf = warp; leaf < count; leaf += warps * ClusterBlocks()) {
      const auto found = ReadLeaf(args, op, view, leaf);
      if (leaf == warp) inbox.WaitForBlocks();
      if (lane == 0) inbox.Send(leaf, found);
    }
    if (warp >= count) inbox.WaitForBlocks();
    if (ClusterRank() > 0) return;
    GivenRow<Op> given;  // loaded before the wait
    if (warp == 0) given = args.GivenOf(op, row, label);
    inbox.Wait();
    if (warp == 0) {
      auto found = StatisticsOfRow<Op>(leaves, count);
      found.max = Op::Reference(found.max);
      const typename Op::Row constants = RowOf<Op>(found, given);
      if (lane == 0) args.StoreScalars(row, constants.scalars);
    }
    __syncthreads();  // before the next row overwrites the leaves
  }
}

}  // namespace jaxkernels
