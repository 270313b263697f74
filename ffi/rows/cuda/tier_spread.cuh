// Tier `spread`: rows that are too long for shared memory are spread over all SMs.
//
// Work split: a row is cut into branches of kBranchLeaves leaves (leaf.cuh), a block for each. One
// kernel finds the statistics of all branches, by a leaf in each warp. Another merges those of a
// row, in every warp, and makes the results; it begins with the last branches, which the L2 cache
// holds. Many rows: tier_spread_once.cuh.
// Memory: two reads and one write per element; one read where the result is a row scalar.
// Order: that of leaf.cuh. A row gives the same bits wherever it lies, beside any number of rows.
// Requires: blocks of kBranchLeaves warps, one for each branch.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_SPREAD_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_SPREAD_CUH_

#include "rows/cuda/leaf.cuh"
#include "rows/long_row_rules.h"

namespace jaxkernels {

// The part of a row that a block works on.
template <typename Op, bool kAligned>
struct Branch {
  // Packs of each input that a thread has in flight: where it finds statistics, and results.
  static constexpr int kPack = Pack<typename Op::Storage>::kSize;
  static constexpr int kUnroll = SpreadPacksInFlight(Op::kOperation, kPack) / Op::kInputs;
  static constexpr int kFinishUnroll = kSpreadFinishPacksInFlight / Op::kInputs;
  static_assert(kLeastLeafTurns % kUnroll == 0, "a leaf ends between two loads of kUnroll packs");

  int64_t row;
  int index;  // within the row
  RowView<Op, kAligned> view;

  // Number `number` of all branches of all rows.
  __device__ Branch(const RowArgs<Op>& args, unsigned number)
      : row(number / static_cast<unsigned>(args.branches)),
        index(static_cast<int>(number % static_cast<unsigned>(args.branches))),
        view(RowView<Op, kAligned>(args, row).StartAtLine()) {}

  // The first pack of leaf `leaf`, of this branch; past the last, of the next.
  __device__ int FirstPack(const RowArgs<Op>& args, int leaf) const {
    return (index * kBranchLeaves + leaf) * args.leaf_turns * kWarpSize;
  }
  // Where its leaves begin.
  __device__ LeafShift Shift() const { return {view.lead, view.head}; }
};

// The statistics of a branch; valid in all lanes of the first warp.
template <typename Op, bool kAligned>
__device__ RowStatistics<Op> StatisticsOfBranch(const RowArgs<Op>& args,
                                                const Branch<Op, kAligned>& branch) {
  constexpr int kUnroll = Branch<Op, kAligned>::kUnroll;
  __shared__ typename Op::Found leaves[kBranchLeaves];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const LeafShift shift = branch.Shift();
  const int first = branch.FirstPack(args, warp) + lane;
  const int end = first + args.leaf_turns * kWarpSize;

  InputPacks<Op> pack[kUnroll], spill[1];
  const bool keeps_packs = args.leaf_turns == kUnroll;
  const auto for_packs = [&](bool again, auto body) {
#pragma unroll 1
    for (int at = first; at < end; at += kUnroll * kWarpSize) {
      if (!again || !keeps_packs) TakePacks(pack, args, branch.view, at, kWarpSize);
      if (!again && at + kUnroll * kWarpSize >= end && lane < shift.Spill()) {
        TakePacks(spill, args, branch.view, end, kWarpSize);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        ForgetPacks(pack[u]);
        body(pack[u], u == 0 && at == first);
      }
    }
  };
  const auto of_leaf = StatisticsOfLeaf<kAligned>(args.op, shift, spill[0], for_packs);
  if (lane == 0) leaves[warp] = of_leaf;
  __syncthreads();
  if (warp > 0) return of_leaf;
  return StatisticsOfLeaves<Op>(leaves, kBranchLeaves);
}

// The constants of a row, from the statistics of its branches; valid in all lanes.
template <typename Op>
__device__ typename Op::Row RowOfBranches(const RowArgs<Op>& args, int64_t row,
                                          const typename Op::Found* statistics) {
  auto of_row = StatisticsOfLeaves<Op>(statistics + row * args.branches, args.branches);
  if constexpr (Op::kUsesMax) of_row.max = Op::Reference(of_row.max);
  return RowOf(of_row, args.GivenOf(row, args.LabelOf(row)));
}

// The results of a branch.
template <typename Op, bool kAligned>
__device__ void FinishBranch(const RowArgs<Op>& args, const Branch<Op, kAligned>& branch,
                             const typename Op::Found* statistics) {
  const bool is_last = branch.index == args.branches - 1;
  const auto row = RowOfBranches(args, branch.row, statistics);
  FinishRow<Branch<Op, kAligned>::kFinishUnroll>(
      args, branch.view, [&] { return row; },
      branch.FirstPack(args, 0) + static_cast<int>(threadIdx.x),
      is_last ? branch.view.packs : branch.FirstPack(args, kBranchLeaves), blockDim.x);
}

template <typename Op, bool kAligned>
__global__ void __maxnreg__(SpreadRegisters(Op::kOperation, Pack<typename Op::Storage>::kSize))
    SpreadStatisticsKernel(RowArgs<Op> args, typename Op::Found* statistics) {
  const auto of_branch = StatisticsOfBranch(args, Branch<Op, kAligned>(args, blockIdx.x));
  if (threadIdx.x == 0) statistics[blockIdx.x] = of_branch;
}

template <typename Op, bool kAligned>
__global__ void __maxnreg__(SpreadRegisters(Op::kOperation, Pack<typename Op::Storage>::kSize))
    SpreadFinishKernel(RowArgs<Op> args, const typename Op::Found* statistics) {
  FinishBranch(args, Branch<Op, kAligned>(args, gridDim.x - 1 - blockIdx.x), statistics);
}

// The same for row scalars. Requires: a block of one warp for each row.
template <typename Op>
__global__ void SpreadScalarKernel(RowArgs<Op> args, const typename Op::Found* statistics) {
  const typename Op::Row constants = RowOfBranches(args, blockIdx.x, statistics);
  if (threadIdx.x == 0) args.StoreScalars(blockIdx.x, constants.scalars);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_SPREAD_CUH_
