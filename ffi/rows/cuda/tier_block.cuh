// Tier `block`: a row lives in the registers of a block, a leaf in each warp.
//
// Work split: a block for each row, as long as a grid may have so many blocks; warp w owns leaf w.
// Memory: every element is read once and written once, in 16-byte packs. Where rows begin within a
// pack, the last elements of a leaf lie in the first pack of the next one, and are read twice.
// Requires: inputs on the packs of the result; leaves of kBlockPacks / kInputs packs a lane, a warp
// for each.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_BLOCK_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_BLOCK_CUH_

#include "rows/cuda/leaf_tree.cuh"
#include "rows/plan.h"

namespace jaxkernels {

template <typename Op, bool kAligned>
__global__ void __maxnreg__(BlockRegisters(Pack<typename Op::Storage>::kSize))
    BlockTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  constexpr int kTurns = kBlockPacks / Op::kInputs;
  __shared__ typename Op::Found found[2][kMostBlockThreads / kWarpSize];
  const int lane = threadIdx.x % kWarpSize, leaf = threadIdx.x / kWarpSize;
  const int first = leaf * kWarpSize * kTurns + lane;
  const int leaf_count = blockDim.x / kWarpSize;
  int turn_of_table = 0;

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const RowView<Op, kAligned> view(args, row);
    const LeafShift shift = {0, view.head};
    InputPacks<Op> pack[kTurns], spill[1];
    const auto for_packs = [&](auto body) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        body(pack[turn], turn == 0 ? LeafPlace::kFirst : LeafPlace::kWithin,
             first + turn * kWarpSize);
      }
      if (!kAligned && shift.Any()) {
        body(spill[0], LeafPlace::kSpill, first + kTurns * kWarpSize);
      }
    };

    // Load: all packs before the first use.
    const int of_spill = lane < shift.Spill() ? first + kTurns * kWarpSize : view.packs;
    LoadPacks<Inputs::kOnPacks>(pack, args, view, first, kWarpSize);
    if constexpr (!kAligned) LoadPacks<Inputs::kOnPacks>(spill, args, view, of_spill, kWarpSize);
    MaskAndHidePacks(pack, args, view, first, kWarpSize);
    if constexpr (!kAligned) MaskAndHidePacks(spill, args, view, of_spill, kWarpSize);

    // Reduce.
    typename Op::Found* const table = found[turn_of_table];
    turn_of_table ^= 1;
    auto of_leaf = RowStatistics<Op>::Empty();
    if (!view.IsBlind(first - lane, kTurns * kWarpSize + 1)) {
      of_leaf = StatisticsOfLeaf<kAligned>(args.op, shift, [&](bool again, auto body) {
        for_packs([&](InputPacks<Op>& one, LeafPlace place, int /*index*/) {
          C term[Pack<T>::kSize];
          body(one, place, term);
          ForgetPacks<Op>(one);
          if (again && IsTerm<Op>(place, shift)) {
            one.input[0] = reinterpret_cast<const Pack<T>&>(term);
          }
        });
      });
    }
    if (lane == 0) table[leaf] = of_leaf;
    __syncthreads();
    const auto of_row = StatisticsOfRow<Op>(table, leaf_count);

    // Store.
    const LeafConstants<Op> constants(args, row, of_row, table, leaf);
    if constexpr (Op::kStoresScalar) {
      if (threadIdx.x == 0) args.StoreScalar(row, constants.own.result);
    } else {
      for_packs([&](const InputPacks<Op>& one, LeafPlace place, int index) {
        if (!view.Has(index)) return;
        if (place == LeafPlace::kSpill && (lane > 0 || leaf + 1 < leaf_count)) return;
        C result[Pack<T>::kSize];
        if (view.IsBlind(index - lane, kWarpSize)) {
          if constexpr (Op::kHides) FinishHidden<Op>(constants.own, result);
        } else {
          constants.Finish(args.op, one, place, shift, IsTerm<Op>(place, shift), result);
        }
        StorePack(args.out, view, index, result);
      });
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_BLOCK_CUH_
