// Tiers `block_smem` and `cluster` for few rows: each block has twice the threads of SmemTierKernel
// and keeps its share of the row in registers.
//
// Work split: the shares of a row are those of tier_smem.cuh. Thread t of a block owns packs t, t +
// blockDim.x, ... of its share, at most kPacks of them, in one accumulator of row_shares.cuh.
// Memory: one read and one write per element. All loads of a row are in flight at once, while its
// cluster starts. Shared memory holds only the scratch of the reductions.
// Order: that of row_shares.cuh, so that a row's bits do not depend on the number of rows.
// Requires: inputs aligned like the result; one cluster, or one block, per row; shares of
// args.kept_packs packs, at most blockDim.x * kPacks; blockDim.x is a multiple of 32.
#pragma once

#include "rows/cuda/row_shares.cuh"
#include "rows/smem_rules.h"

namespace jaxkernels {

template <typename Op, bool kAligned>
__global__ void __maxnreg__(kFewRowsRegisters) FewRowsKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  static_assert(Op::kSharesRows && !Op::kHides && Op::kStoresElements);
  constexpr int kPacks = kFewRowsPacks / Op::kInputs;
  __shared__ typename RowBlockReducer<Op>::Scratch scratch;
  __shared__ typename ClusterExchange<RowStatistics<Op>>::Scratch cluster_scratch;
  static_assert(WholeSmemLines(sizeof(scratch) + sizeof(cluster_scratch)) <=
                kShareScratchBytes<Op>);
  RowBlockReducer<Op> block(scratch);
  const int64_t row = ClusterIndex();
  const auto view = RowView<Op, kAligned>(args, row).PartFromLine(ClusterRank(), args.kept_packs);
  const int thread = threadIdx.x, threads = blockDim.x, warp_begin = thread / kWarpSize * kWarpSize;
  // Calls body(i) for pack i of this thread; a warp skips iterations in which none of its lanes has
  // a pack.
  const auto for_packs = [&](auto body) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (warp_begin + i * threads < view.packs) body(i);
    }
  };

  // Load.
  const int label = args.LabelOf(row);
  const auto& op = args.OpOf(row);
  InputPacks<Op> pack[kPacks];
  LoadPacks<Inputs::kOnPacks>(pack, args, view, thread, threads);
  ClusterExchange<RowStatistics<Op>> cluster(cluster_scratch);
  MaskAndHidePacks(pack, args, view, thread, threads);

  // Reduce.
  auto found = RowStatistics<Op>::Empty();
  C largest = 0;
  if constexpr (Op::kUsesMax) {
    for_packs([&](int i) {
      found.max = Max(found.max, MaxOfPacks(op, pack[i]));
      ForgetPacks<Op>(pack[i]);
    });
    largest = found.max;
    found.max = ReduceMax(op, block, largest);
  }
  const C reference = found.Reference(found.max);
  C term[kPacks][Pack<T>::kSize];
  WithTerms(op, reference, largest, !MakesAllSums(op), [&](const auto& terms) {
    for_packs([&](int i) {
      AddPacks(op, terms, pack[i], reference, term[i], found.sum);
      ForgetPacks<Op>(pack[i]);
    });
  });
  const GivenRow<Op> given = args.GivenOf(op, row, label);
  AllReduceSums(op, block, found);
  cluster.WaitForBlocks();
  // In an in-place call another block may overwrite the label's element once the shares are
  // combined.
  if constexpr (Op::kTakesLabel) FenceReads();
  MergeShares(op, cluster, found);

  // Store.
  const typename Op::Row constants = RowOf<Op>(found, given);
  if constexpr (Op::kStores > 0) {
    if (thread == 0 && ClusterRank() == 0) args.StoreScalars(row, constants.scalars);
  }
  WithTermsOf(op, constants, [&](const auto& terms) {
    for_packs([&](int i) {
      const int index = thread + i * threads;
      if (!view.Has(index)) return;
      C result[Pack<T>::kSize];
      if constexpr (kKeepsShareTerms<Op>) {
        FinishTerms(op, term[i], constants, result);
      } else {
        FinishPacks(op, terms, view, pack[i], constants, index, result);
      }
      StoreResults(args, view, index, result);
    });
  });
  ClearHidden(args, view, constants, thread, view.packs, threads);
}

}  // namespace jaxkernels
