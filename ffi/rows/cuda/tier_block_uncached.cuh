// Tier `block_uncached`: the row does not fit; a block reads it twice, but for the part that it can
// keep. It also serves rows whose inputs begin elsewhere within a pack than the result.
//
// Work split: warp w owns leaves w, w + warps, ... of the window, and lane l packs l, l + 32, ... of
// a leaf; a block walks the rows grid-stride. Memory: two reads and one write per element at most,
// one read where the result is a row scalar. A leaf is read for its maximum, and again, from the
// cache, for its sums. The first args.kept_packs packs of every input stay in shared memory; the
// second read of the others walks backwards, from the packs that the first one left in the L2
// cache.
// Requires: blockDim.x is a multiple of 32; shared memory for the statistics of all leaves, twice,
// and kInputs * args.kept_packs packs.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_BLOCK_UNCACHED_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_BLOCK_UNCACHED_CUH_

#include "rows/cuda/leaf_tree.cuh"
#include "rows/plan.h"

namespace jaxkernels {

// One leaf of a row that is read from global memory, but for the packs that are kept.
template <typename Op, bool kAligned>
struct GlobalLeaf {
  using T = typename Op::Storage;
  static constexpr int kUnroll = kUncachedPacksInFlight / Op::kInputs;

  const RowArgs<Op>& args;
  const RowView<Op, kAligned>& view;
  Pack<T>* const kept;
  const int leaf;

  __device__ LeafShift Shift() const { return {view.lead, view.head}; }
  // The first pack of the lane, and the one behind its last.
  __device__ int First() const {
    return leaf * args.leaf_turns * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize);
  }
  __device__ int End() const { return First() + args.leaf_turns * kWarpSize; }

  // body(pack, place, index) for the lane's packs and, if it has one, its spill: some of them on
  // their way before the first use. again: the kept ones lie in shared memory; else they are put
  // there. Every thread keeps packs of its own, so they need no barrier.
  template <typename Body>
  __device__ void ForPacks(bool again, bool with_spill, Body body) const {
    const bool has_spill =
        with_spill && static_cast<int>(threadIdx.x % kWarpSize) < Shift().Spill();
    const int end = End() + (has_spill ? 1 : 0);
    for (int at = First(); at < end; at += kUnroll * kWarpSize) {
      InputPacks<Op> pack[kUnroll];
      const auto index_of = [&](int u) { return at + u * kWarpSize; };
      const auto is_kept = [&](int index) { return index < args.kept_packs && index < End(); };
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int index = index_of(u);
        FillPacks<Op>(pack[u]);
        if (index >= end || !view.Sees(index)) continue;
        if (again && is_kept(index)) {
#pragma unroll
          for (int i = 0; i < Op::kInputs; ++i) {
            pack[u].input[i] = kept[i * args.kept_packs + index];
          }
        } else {
          LoadInputs<Inputs::kAnywhere>(pack[u], args, view, index);
          if constexpr (kHasMask<Op>) {
            if (view.IsMasked()) LoadMask<Op>(pack[u].mask, view, index);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int index = index_of(u);
        if (index >= end) continue;
        if (!(again && is_kept(index))) {
          MaskPacks<Op>(pack[u], args, view, index);
          HidePacks<Op>(pack[u], view, index);
          if (is_kept(index)) {
#pragma unroll
            for (int i = 0; i < Op::kInputs; ++i) {
              kept[i * args.kept_packs + index] = pack[u].input[i];
            }
          }
        }
        const auto place = index >= End()      ? LeafPlace::kSpill
                           : index == First()  ? LeafPlace::kFirst
                                               : LeafPlace::kWithin;
        body(pack[u], place, index);
      }
    }
  }

  __device__ RowStatistics<Op> Statistics() const {
    return StatisticsOfLeaf<kAligned>(args.op, Shift(), [&](bool again, auto body) {
      typename Op::C term[Pack<T>::kSize];
      ForPacks(again && Op::kUsesMax, Shift().Any(),
               [&](const InputPacks<Op>& pack, LeafPlace place, int /*index*/) {
                 body(pack, place, term);
               });
    });
  }
};

template <typename Op, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters) BlockUncachedTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using View = RowView<Op, kAligned>;
  using Found = typename Op::Found;
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  Pack<T>* const kept = reinterpret_cast<Pack<T>*>(dynamic_smem);
  Found* const tables = reinterpret_cast<Found*>(kept + Op::kInputs * args.kept_packs);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  const int leaf_count = CountLeaves(args.cols, Pack<T>::kSize, args.leaf_turns);
  int turn_of_table = 0;

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const View view = View(args, row).StartAtLine();
    Found* const table = tables + turn_of_table * leaf_count;
    turn_of_table ^= 1;

    // Load and reduce.
    for (int leaf = warp; leaf < leaf_count; leaf += warps) {
      const auto found = GlobalLeaf<Op, kAligned>{args, view, kept, leaf}.Statistics();
      if (lane == 0) table[leaf] = found;
    }
    __syncthreads();
    const auto of_row = StatisticsOfRow<Op>(table, leaf_count);

    // Store; load again, backwards, unless the result is a row scalar.
    if constexpr (Op::kStoresScalar) {
      if (warp == 0) {
        const LeafConstants<Op> constants(args, row, of_row, table, 0);
        if (lane == 0) args.StoreScalar(row, constants.own.result);
      }
    } else {
#pragma unroll 1
      for (int i = warp + (leaf_count - 1 - warp) / warps * warps; i >= 0; i -= warps) {
        if (i >= leaf_count) continue;
        const GlobalLeaf<Op, kAligned> leaf = {args, view, kept, i};
        const LeafConstants<Op> constants(args, row, of_row, table, i);
        leaf.ForPacks(true, i == leaf_count - 1,  // whose spill is no other's
                      [&](const InputPacks<Op>& pack, LeafPlace place, int index) {
                        if (!view.Has(index)) return;
                        C result[Pack<T>::kSize];
                        constants.Finish(args.op, pack, place, leaf.Shift(), false, result);
                        StorePack(args.out, view, index, result);
                      });
      }
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_BLOCK_UNCACHED_CUH_
