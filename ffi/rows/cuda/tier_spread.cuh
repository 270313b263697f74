// Tier `spread`: rows that are too long for shared memory are spread over all SMs, by two kernels.
//
// Work split: a row is cut into branches of kBranchLeaves leaves (leaf.cuh), a block for each. The
// first kernel finds the statistics of every branch, a leaf in each warp. The second merges those
// of a row, in every warp, and makes its results.
// Memory: two reads and one write per element; one read where the result is a row scalar. The
// second kernel begins with the last rows, which the first has left in the L2 cache. A leaf is read
// for its maximum, and again for its sums; by its size the L1 cache could hold it (not counted).
// Order: that of leaf.cuh. A row gives the same bits wherever it lies, beside any number of rows.
// Requires: a grid of args.rows * args.branches blocks of kBranchLeaves warps.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_SPREAD_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_SPREAD_CUH_

#include "rows/cuda/leaf.cuh"
#include "rows/plan.h"

namespace jaxkernels {

// The part of a row that a block works on.
template <typename Op, bool kAligned>
struct Branch {
  static constexpr int kUnroll = kSpreadPacksInFlight / Op::kInputs;

  int64_t row;
  int index;  // within the row
  RowView<Op, kAligned> view;

  __device__ Branch(const RowArgs<Op>& args, int64_t row)
      : row(row),
        index(static_cast<int>(blockIdx.x % args.branches)),
        view(RowView<Op, kAligned>(args, row).StartAtLine()) {}

  __device__ LeafShift Shift() const { return {view.lead, view.head}; }

  // body(pack, place, index) for the lane's packs of a warp's leaf; with_spill: of the spill, too.
  template <typename Body>
  __device__ void ForPacks(const RowArgs<Op>& args, int turns, bool with_spill, Body body) const {
    const int lane = threadIdx.x % kWarpSize;
    const int leaf = index * kBranchLeaves + static_cast<int>(threadIdx.x / kWarpSize);
    const int first = leaf * turns * kWarpSize + lane, of_spill = first + turns * kWarpSize;
    const int end = of_spill + (with_spill && lane < Shift().Spill() ? 1 : 0);
#pragma unroll 1
    for (int at = first; at < end; at += kUnroll * kWarpSize) {
      InputPacks<Op> pack[kUnroll];
      LoadPacks<Inputs::kAnywhere>(pack, args, view, at, kWarpSize);
      MaskAndHidePacks(pack, args, view, at, kWarpSize);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int here = at + u * kWarpSize;
        if (here >= end) continue;
        const auto place = here == first      ? LeafPlace::kFirst
                           : here == of_spill ? LeafPlace::kSpill
                                              : LeafPlace::kWithin;
        body(pack[u], place, here);
      }
    }
  }
};

template <typename Op, bool kAligned>
__global__ void __launch_bounds__(kBranchLeaves * 32, 4)
    SpreadStatisticsKernel(RowArgs<Op> args, typename Op::Found* statistics) {
  __shared__ typename Op::Found leaves[kBranchLeaves];
  const Branch<Op, kAligned> branch(args, blockIdx.x / args.branches);
  const auto of_leaf = StatisticsOfLeaf<kAligned>(args.op, branch.Shift(), [&](bool, auto body) {
    branch.ForPacks(
        args, args.leaf_turns, branch.Shift().Any(),
        [&](const InputPacks<Op>& pack, LeafPlace place, int /*index*/) { body(pack, place); });
  });
  if (threadIdx.x % kWarpSize == 0) leaves[threadIdx.x / kWarpSize] = of_leaf;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  const auto of_branch = StatisticsOfLeaves<Op>(leaves, kBranchLeaves);
  if (threadIdx.x == 0) statistics[branch.row * args.branches + branch.index] = of_branch;
}

template <typename Op, bool kAligned>
__global__ void __launch_bounds__(kBranchLeaves * 32, 4)
    SpreadFinishKernel(RowArgs<Op> args, const typename Op::Found* statistics) {
  using T = typename Op::Storage;
  const Branch<Op, kAligned> branch(args, args.rows - 1 - blockIdx.x / args.branches);
  if (Op::kStoresScalar && branch.index > 0) return;
  auto of_row = StatisticsOfLeaves<Op>(statistics + branch.row * args.branches, args.branches);
  if constexpr (Op::kUsesMax) of_row.max = Op::Reference(of_row.max);
  const typename Op::Row constants = RowOf(args, branch.row, of_row);
  if constexpr (Op::kStoresScalar) {
    if (threadIdx.x == 0) args.StoreScalar(branch.row, constants.result);
  } else {
    // The spill of the last leaf is no other's.
    const bool is_last = branch.index == args.branches - 1 &&
                         static_cast<int>(threadIdx.x / kWarpSize) == kBranchLeaves - 1;
    branch.ForPacks(args, args.leaf_turns, is_last,
                    [&](const InputPacks<Op>& pack, LeafPlace /*place*/, int index) {
                      if (!branch.view.Has(index)) return;
                      typename Op::C result[Pack<T>::kSize];
                      FinishPacks(args.op, pack, constants, result);
                      StorePack(args.out, branch.view, index, result);
                    });
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_SPREAD_CUH_
