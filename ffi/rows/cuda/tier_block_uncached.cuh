// Tier `block_uncached`: the row does not fit; a block reads it twice, but for the part that it can
// keep. It also serves rows whose inputs begin elsewhere within a pack than the result.
//
// Work split: warp w owns leaves w, w + warps, ... of the window, and lane l packs l, l + 32, ... of
// a leaf; a block walks the rows grid-stride. Memory: two reads and one write per element at most,
// one read where the result is a row scalar, because maximum and sums are found together, online
// (Milakov and Gimelshein 2018, arXiv 1805.02867), where OneFlow reads three times. The first
// args.kept_packs packs of every input stay in shared memory; the second read of the others walks
// backwards, from the packs that the first one left in the L2 cache.
// Requires: blockDim.x is a multiple of 32; shared memory for kInputs * args.kept_packs packs.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_BLOCK_UNCACHED_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_BLOCK_UNCACHED_CUH_

#include "rows/cuda/leaf_tree.cuh"
#include "rows/plan.h"

namespace jaxkernels {

// The statistics of one leaf of a row that is read from global memory. `visit(turn, index, pack)`
// sees each pack of the lane but the spill.
template <Inputs kInputs, typename Op, bool kAligned, typename Visit>
__device__ RowStatistics<Op> LoadLeaf(const RowArgs<Op>& args, const RowView<Op, kAligned>& view,
                                      int leaf, Visit visit) {
  const int first = leaf * kLeafPacks + threadIdx.x % kWarpSize;
  const LeafShift shift = {view.lead, view.head};
  InputPacks<Op> pack[kLeafTurns], spill[1];
  LoadPacks<kInputs>(pack, args, view, first, kWarpSize);
  const bool has_spill = static_cast<int>(threadIdx.x % kWarpSize) < shift.Spill();
  LoadPacks<kInputs>(spill, args, view, has_spill ? first + kLeafPacks : view.packs, kWarpSize);
  MaskAndHidePacks(pack, args, view, first, kWarpSize);
  MaskAndHidePacks(spill, args, view, first + kLeafPacks, kWarpSize);
#pragma unroll
  for (int turn = 0; turn < kLeafTurns; ++turn) visit(first + turn * kWarpSize, pack[turn]);
  return StatisticsOfLeaf<kAligned>(args.op, shift, [&](int turn, bool /*again*/) {
    return turn < kLeafTurns ? pack[turn] : spill[0];
  });
}

template <typename Op, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters) BlockUncachedTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using View = RowView<Op, kAligned>;
  __shared__ typename Op::Found found[2][kTreeLeaves];
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  Pack<T>* const kept = reinterpret_cast<Pack<T>*>(dynamic_smem);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  const int leaf_count = CountLeaves(args.cols, Pack<T>::kSize);
  int turn_of_table = 0;

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const View view = View(args, row).StartAtLine();
    // Every thread keeps packs of its own, so no barrier is needed.
    const auto keep = [&](int index, const InputPacks<Op>& pack) {
      if (index >= args.kept_packs) return;
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) kept[i * args.kept_packs + index] = pack.input[i];
    };

    // Load and reduce, a tree at a time.
    auto of_row = RowStatistics<Op>::Empty();
    for (int first = 0; first < leaf_count; first += kTreeLeaves) {
      const int count = min(leaf_count - first, kTreeLeaves);
      typename Op::Found* const table = found[turn_of_table];
      turn_of_table ^= 1;
      for (int i = warp; i < count; i += warps) {
        const auto of_leaf = LoadLeaf<Inputs::kAnywhere>(args, view, first + i, keep);
        if (lane == 0) table[i] = of_leaf;
      }
      __syncthreads();
      of_row.Merge(StatisticsOfTree<Op>(table, count));
    }
    if constexpr (Op::kUsesMax) of_row.max = Op::Reference(of_row.max);
    const typename Op::Row constants = RowOf(args, row, of_row);

    // Store; load again, backwards, unless the result is a row scalar.
    if constexpr (Op::kStoresScalar) {
      if (threadIdx.x == 0) args.StoreScalar(row, constants.result);
    } else {
      const int chunks = (view.packs + kLeafPacks - 1) / kLeafPacks;
#pragma unroll 1
      for (int chunk = (chunks - 1 - warp) / warps * warps + warp; chunk >= 0; chunk -= warps) {
        if (chunk >= chunks) continue;
        const int first_pack = chunk * kLeafPacks + lane;
        InputPacks<Op> pack[kLeafTurns];
const auto is_kept = [&](int index) {
          return index < args.kept_packs && chunk < leaf_count;
        };
#pragma unroll
        for (int turn = 0; turn < kLeafTurns; ++turn) {
          const int index = first_pack + turn * kWarpSize;
          if (!view.Sees(index)) {
            FillPacks<Op>(pack[turn]);
          } else if (is_kept(index)) {
#pragma unroll
            for (int i = 0; i < Op::kInputs; ++i) {
              pack[turn].input[i] = kept[i * args.kept_packs + index];
            }
          } else {
            LoadInputs<Inputs::kAnywhere>(pack[turn], args, view, index);
            if constexpr (kHasMask<Op>) {
              if (view.IsMasked()) LoadMask<Op>(pack[turn].mask, view, index);
            }
          }
        }
#pragma unroll
        for (int turn = 0; turn < kLeafTurns; ++turn) {
          const int index = first_pack + turn * kWarpSize;
          if (is_kept(index)) continue;
          MaskPacks<Op>(pack[turn], args, view, index);
          HidePacks<Op>(pack[turn], view, index);
        }
#pragma unroll
        for (int turn = 0; turn < kLeafTurns; ++turn) {
          const int index = first_pack + turn * kWarpSize;
          if (!view.Has(index)) continue;
          C result[Pack<T>::kSize];
          FinishPacks(args.op, pack[turn], constants, result);
          StorePack(args.out, view, index, result);
        }
      }
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_BLOCK_UNCACHED_CUH_
