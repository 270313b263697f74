// The share of a row that each block of a cluster has, or all of it if the block is alone: in which
// order it is added up, and how the shares meet. The kernels of tier_smem.cuh and tier_few_rows.cuh
// give the same bits by it.
//
// A share is some cache lines of the row's window. Its pack p is of class p mod (2 * threads),
// where `threads` are those of a block of SmemTierKernel. (Of operations without few rows' layout:
// p mod threads.) Each class is summed in ascending order. Then classes meet in groups of 32
// neighbours, those groups meet (BlockReducer), and then the blocks do. Where a block has more than
// 512 threads, and no few rows' layout, the two groups of a warp meet before.
//
// Clusters: each block takes its terms relative to the maximum of its own share, as in
// row_statistics.cuh, so that maximum and sum cross the cluster together, once a row. With the
// maxima apart it took 5 percent longer (H200, float32, 131072 columns, 2026-11, while the blocks
// met at a barrier of the whole cluster).
#ifndef JAXKERNELS_ROWS_CUDA_ROW_SHARES_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_SHARES_CUH_

#include "core/cluster.cuh"
#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/smem_rules.h"

namespace jaxkernels {

// Classes of packs that a thread of SmemTierKernel has.
template <typename Op>
inline constexpr int kShareClasses =
    HasFewRowsLayout(Op::kOperation, kDTypeOf<typename Op::Storage>) ? 2 : 1;

static_assert(kMostSmemThreads == kMaxWarpsPerBlock * kWarpSize,
              "classes stay apart wherever few rows have their layout");

template <typename Op>
inline constexpr bool kIsLed = IsLed(Op::kOperation);

// What the first warp of a block tells the others.
template <typename Op, bool kLed = kIsLed<Op>>
struct LedShare {
  typename Op::LedRow row;
  typename Op::C labelled;  // the element at the label
  int labelled_thread;      // that has the pack with the label's column; none: -1
};
template <typename Op>
struct LedShare<Op, false> {};

// The scratch of the reductions, as plans count it.
template <typename Op>
inline constexpr int kShareScratchBytes =
    ReductionScratchBytes(Op::kOperation, kDTypeOf<typename Op::Storage>);

// Whether results are made from kept terms. A term goes where its input was, and only a value of
// the same size fits. Where a row scalar multiplies it, it is computed again, relative to the
// maximum of the whole row: a sum relative to that of one block may leave the range of its type,
// and the product with it.
template <typename Op>
inline constexpr bool kKeepsShareTerms =
    Op::kKeepsTerm && Op::kTakes == 0 && sizeof(typename Op::Storage) == sizeof(typename Op::C);

// From the statistics of this block's share to those that the results of the share are made from.
// Requires: all threads have them, and a __syncthreads() since the last time.
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
      // The terms of this block stay relative to its own maximum. Where that is so far below the
      // row's that the sum overflows, the results are subnormal, and zero.
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

// The same and the constants of the row, by the first warp of a block, from the sums of the
// threads' classes. When it returns, all threads see them in `told`. Requires: as MergeShares, and
// all threads of the block.
template <typename Op, bool kAligned, typename C, int kClasses>
__device__ void LeadRow(const RowArgs<Op>& args, const RowView<Op, kAligned>& view, int64_t row,
                        int label, RowBlockReducer<Op>& block,
                        ClusterExchange<RowStatistics<Op>>& cluster, C (&sum)[kClasses][Op::kSums],
                        RowStatistics<Op>& found, LedShare<Op>& told) {
  GivenRow<Op> given;
  if (threadIdx.x < kWarpSize) given = args.GivenOf(row, label);
  if (ReduceClassSums(args.op, block, sum, found, threadIdx.x < kWarpSize)) {
    // In place, another block may store over the label's element once the shares have met. So it
    // goes through shared memory before that, which waits until it has been loaded.
    if (threadIdx.x == 0) told.labelled = given.labelled;
    __syncwarp();
    MergeShares(args.op, cluster, found);
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

#endif  // JAXKERNELS_ROWS_CUDA_ROW_SHARES_CUH_
