// Tier `block`: a row lives in the registers of a block, some leaves in each warp.
//
// Work split: a block for each row, as long as a grid may have so many blocks; warp w owns leaves
//   w * kLeaves to before (w + 1) * kLeaves.
// Memory: every element is read once and written once, in 16-byte packs. Where rows begin within a
// pack, the last elements of a leaf lie in the first pack of the next one, and are read twice.
// Requires: inputs on the packs of the result; the window of a row has at most blockDim.x *
// kBlockPacks / kInputs packs; blockDim.x is a multiple of 32.
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
  constexpr int kLeaves = kBlockPacks / Op::kInputs / kLeafTurns;
  __shared__ typename Op::Found found[2][kMostBlockLeaves];
  const int lane = threadIdx.x % kWarpSize, first_leaf = threadIdx.x / kWarpSize * kLeaves;
  const int leaf_count = CountLeaves(args.cols, Pack<T>::kSize);
  int turn_of_table = 0;

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const RowView<Op, kAligned> view(args, row);
    const LeafShift shift = {0, view.head};
    InputPacks<Op> pack[kLeaves][kLeafTurns], spill[kLeaves][1];

    // Load: all packs before the first use.
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
      const int first = (first_leaf + l) * kLeafPacks + lane;
      LoadPacks<Inputs::kOnPacks>(pack[l], args, view, first, kWarpSize);
      if constexpr (!kAligned) {
        const int of_spill = lane < shift.Spill() ? first + kLeafPacks : view.packs;
        LoadPacks<Inputs::kOnPacks>(spill[l], args, view, of_spill, kWarpSize);
      }
    }

    // Reduce.
    typename Op::Found* const table = found[turn_of_table];
    turn_of_table ^= 1;
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
      const int first = (first_leaf + l) * kLeafPacks + lane;
      MaskAndHidePacks(pack[l], args, view, first, kWarpSize);
      if constexpr (!kAligned) {
        MaskAndHidePacks(spill[l], args, view, first + kLeafPacks, kWarpSize);
      }
      if (first - lane >= view.packs) continue;
      const auto of_leaf =
          StatisticsOfLeaf<kAligned>(args.op, shift, [&](int turn, bool /*again*/) {
            return turn < kLeafTurns ? pack[l][turn] : spill[l][0];
          });
      if (lane == 0) table[first_leaf + l] = of_leaf;
#pragma unroll
      for (auto& one : pack[l]) ForgetPacks<Op>(one);
    }
    __syncthreads();
    auto of_row = StatisticsOfTree<Op>(table, leaf_count);

    // Store.
    if constexpr (Op::kUsesMax) of_row.max = Op::Reference(of_row.max);
    const typename Op::Row constants = RowOf(args, row, of_row);
    if constexpr (Op::kStoresScalar) {
      if (threadIdx.x == 0) args.StoreScalar(row, constants.result);
    } else {
#pragma unroll
      for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
        for (int turn = 0; turn < kLeafTurns; ++turn) {
          const int index = (first_leaf + l) * kLeafPacks + turn * kWarpSize + lane;
          if (!view.Has(index)) continue;
          C result[Pack<T>::kSize];
          if (Op::kHides && view.IsBlind(index - lane, kWarpSize)) {
            if constexpr (Op::kHides) FinishHidden<Op>(constants, result);
          } else {
            FinishPacks(args.op, pack[l][turn], constants, result);
          }
          StorePack(args.out, view, index, result);
        }
      }
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_BLOCK_CUH_
