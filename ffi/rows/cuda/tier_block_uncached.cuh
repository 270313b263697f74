// Tier `block_uncached`: rows too long for shared memory. A block reads a row twice, except for the
// part that it keeps. The tier also handles rows whose inputs are aligned differently from the
// result.
//
// Work split: thread t owns packs t, t + blockDim.x, ... of the window; a block takes rows
// in a grid-stride loop.
// Memory: at most two reads and one write per element; one read if the result is a row scalar.
// Maximum and sums come from one pass with the online normalizer (Milakov and Gimelshein 2018,
// arXiv 1805.02867); OneFlow reads three times. The first args.kept_packs packs of every input stay
// in shared memory. The second pass over the others runs backwards, to hit what the first left in
// the L2 cache.
// Requires: blockDim.x is a multiple of 32; shared memory for kInputs * args.kept_packs packs.
#pragma once

#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/long_row_rules.h"

namespace jaxkernels {

template <typename Op, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters) BlockUncachedTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using View = RowView<Op, kAligned>;
  __shared__ typename RowBlockReducer<Op>::Scratch scratch;
  RowBlockReducer<Op> block(scratch);
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  Pack<T>* const kept = reinterpret_cast<Pack<T>*>(dynamic_smem);
  constexpr int kUnroll = kUncachedPacksInFlight / Op::kInputs;
  const int step = blockDim.x * kUnroll;

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const View view = View(args, row).StartAtLine();
    const int label = args.LabelOf(row);
    const auto& op = args.OpOf(row);
    // Loads up to kUnroll packs of each input; all loads are issued before the first use. In the
    // second pass kept packs come from shared memory. Every thread reads only packs that it stored
    // itself, so no barrier is needed.
    InputPacks<Op> pack[kUnroll];
    const auto load = [&](int first, bool again) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int index = first + u * blockDim.x;
        PlaceColumn(pack[u], view, index);
        if (!view.Sees(index)) {
          FillPacks<Op>(pack[u]);
        } else if (again && index < args.kept_packs) {
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
        const int index = first + u * blockDim.x;
        if (again && index < args.kept_packs) continue;
        MaskPacks<Op>(pack[u], args, view, index);
        HidePacks<Op>(pack[u], view, index);
        if (index < args.kept_packs) {
#pragma unroll
          for (int i = 0; i < Op::kInputs; ++i) {
            kept[i * args.kept_packs + index] = pack[u].input[i];
          }
        }
      }
    };

    // The first pass loads and reduces; the second loads again, backwards, and stores. There is no
    // second pass if the result is a row scalar. One loop does both, since the loads are most of
    // the code.
    auto online = RowStatistics<Op>::Empty();
    typename Op::Row constants = RowOf<Op>(online, {});  // overwritten below
    const int turns = (view.packs + step - 1) / step;
#pragma unroll 1
    for (int turn = 0; turn < (Op::kStoresElements ? 2 : 1) * turns; ++turn) {
      const bool again = turn >= turns;
      const int first = (again ? 2 * turns - 1 - turn : turn) * step + threadIdx.x;
      load(first, again);
      if (!again) {
        online.Add(op, pack);
        if (turn + 1 < turns) continue;
        const GivenRow<Op> given = args.GivenOf(op, row, label);
        online.MergeOver(op, block);
        if constexpr (Op::kUsesMax) online.max = Op::Reference(online.max);
        constants = RowOf<Op>(online, given);
        if constexpr (Op::kStores > 0) {
          if (threadIdx.x == 0) args.StoreScalars(row, constants.scalars);
        }
        continue;
      }
      if constexpr (Op::kStoresElements) {
#pragma unroll
        for (int u = kUnroll - 1; u >= 0; --u) {
          const int index = first + u * blockDim.x;
          if (!view.Has(index)) continue;
          C result[Pack<T>::kSize];
          FinishPacks(op, SingleTerms(), view, pack[u], constants, index, result);
          StoreResults(args, view, index, result);
        }
      }
    }
    ClearHidden(args, view, constants, threadIdx.x, view.packs, blockDim.x);
  }
}

}  // namespace jaxkernels
