// Each block's share of a row (the whole row without clusters): the order of its sums, and the
// reduction across blocks. The kernels of tier_smem.cuh and tier_few_rows.cuh both follow it, so
// that they give the same bits.
//
// A share is a run of cache lines of the row's window. Its pack p belongs to accumulator p mod (2 *
// threads), where `threads` is the block size of SmemTierKernel. (Operations without FewRowsKernel:
// p mod threads.) Each accumulator adds its packs in ascending order. Then groups of 32
// neighbouring accumulators are combined, then those groups (BlockReducer), then the blocks. In a
// block of more than 512 threads with two accumulators each, the two groups of a warp are combined
// first.
//
// In clusters, each block shifts its terms by the maximum of its own share, as in
// row_statistics.cuh, so that one exchange per row carries maximum and sums. A separate exchange of
// the maxima took 5 percent longer (H200, float32, 131072 columns, 2026-11, measured with a barrier
// of the whole cluster).
#pragma once

#include "core/cluster.cuh"
#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/smem_rules.h"

namespace jaxkernels {

// Accumulators per thread of SmemTierKernel.
template <typename Op>
inline constexpr int kShareClasses =
    HasFewRowsLayout(Op::kOperation, kDTypeOf<typename Op::Storage>) ? 2 : 1;

static_assert(kMostSmemThreads == kMaxWarpsPerBlock * kWarpSize,
              "classes stay apart wherever few rows have their layout");

template <typename Op>
inline constexpr bool kIsLed = IsLed(Op::kOperation);

// Row constants that warp 0 of a block broadcasts to the other warps.
template <typename Op, bool kLed = kIsLed<Op>>
struct LedShare {
  typename Op::LedRow row;
  typename Op::C labelled;  // the element at the label
  typename Op::C slope;     // GivenRow::slope
  int labelled_thread;      // thread that owns the pack of the label's column; -1: none
};
template <typename Op>
struct LedShare<Op, false> {};

// Bytes of shared memory for the reductions, as plans count them.
template <typename Op>
inline constexpr int kShareScratchBytes =
    ReductionScratchBytes(Op::kOperation, kDTypeOf<typename Op::Storage>);

// Whether results are computed from kept terms. A term replaces its input, so it must have the same
// size. If a row scalar multiplies the term, it is recomputed relative to the maximum of the whole
// row: a sum relative to one block's maximum may overflow, and the product with it.
template <typename Op>
inline constexpr bool kKeepsShareTerms =
    Op::kKeepsTerm && Op::kTakes == 0 && sizeof(typename Op::Storage) == sizeof(typename Op::C);

// Combines the statistics of all shares of a row into those from which this share's results are
// computed.
// Requires: all threads have the statistics of their share; a __syncthreads() since the last call.
template <typename Op>
__device__ void MergeShares(const Op& op, ClusterExchange<RowStatistics<Op>>& cluster,
                            RowStatistics<Op>& found) {
  using C = typename Op::C;
  constexpr bool kKeep = kKeepsShareTerms<Op>;
  static_assert(!kKeep || (Op::kUsesMax && Op::kSums == 1),
                "an infinite sum of kept terms is one of far larger ones");
  static_assert(kKeep || !Op::kKeepsRest, "MergeOver passes over the rests of sums");
  if (ClusterBlocks() > 1) {
    LaneGroup<kMostClusterBlocks, 1> blocks;
    auto all = cluster.AllGather(found, RowStatistics<Op>::Empty());
    if constexpr (kKeep) {
      // The terms of this block stay relative to its own maximum. If that is so far below the row's
      // that the sum overflows, the results are subnormal, and become zero.
      const C reference = found.Reference(found.max);
      found.max = AllReduce<MaxReduction<C>>(blocks, all.max);
      all.MakeRelativeTo(reference);
      AllReduceExactSums(blocks, all);
      if (all.sum[0] == kInfinity<C>) all.SetSum(0, 0);
      found.SetSum(0, all.ExactSum(0));
    } else {
      all.MergeOver(op, blocks);
      found = all;
    }
  }
  if constexpr (Op::kUsesMax) found.max = Op::Reference(found.max);
  if constexpr (kKeep) found.sum[0] += found.max - found.max;  // NaN if it is infinite
}

// Warp 0 reduces the accumulators of the block, combines the shares and computes the row constants.
// On return `told` holds them for all threads.
// Requires: all threads of the block call it; a __syncthreads() since the last call.
template <typename Op, bool kAligned, typename C, int kClasses>
__device__ void LeadRow(const RowArgs<Op>& args, const Op& op, const RowView<Op, kAligned>& view,
                        int64_t row, int label, RowBlockReducer<Op>& block,
                        ClusterExchange<RowStatistics<Op>>& cluster, C (&sum)[kClasses][Op::kSums],
                        RowStatistics<Op>& found, LedShare<Op>& told) {
  GivenRow<Op> given;
  if (threadIdx.x < kWarpSize) given = args.GivenOf(op, row, label);
  if (ReduceClassSums(op, block, sum, found, threadIdx.x < kWarpSize)) {
    // In an in-place call another block may overwrite the label's element once the shares are
    // combined. Copying it to shared memory first waits until it has been loaded.
    if (threadIdx.x == 0) told.labelled = given.labelled, told.slope = given.slope;
    __syncwarp();
    MergeShares(op, cluster, found);
    if (threadIdx.x == 0) {
      given.labelled = told.labelled;
      told.row = typename Op::LedRow(found, given);
      const int pack = told.row.is_left_out ? -1 : view.PackOf(given.label);
      const bool has_label = pack >= 0 && pack < view.packs;
      told.labelled_thread = has_label ? pack % static_cast<int>(blockDim.x) : -1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && ClusterRank() == 0) args.StoreScalars(row, told.row.scalars);
}

}  // namespace jaxkernels
