// Tiers `block_smem` and `cluster`: a row lands in the shared memory of a block, or of several that
// form a cluster, and lives there and in the blocks' registers.
//
// Work split: of the window of a row each block of a cluster has as many leaves; warp w owns leaves
//   w, w + warps, ... of them, and lane l packs l, l + 32, ... of a leaf; a cluster, or a block that
//   is alone, walks its rows (row_batches.h).
// Memory: one read and one write per element. A row travels to shared memory by asynchronous
//   copies, all in flight at once. A warp takes its first leaf into registers, and the same packs of
//   the next row set out for their places at once; what is left of the row stays in shared memory
//   until its result is stored, and then makes place too. So loads run below the arithmetic and the
//   stores, even where one row fills the SM. Every thread touches only packs that it copied itself,
//   so the data needs no barrier. Where the window begins before the row, the end of a leaf lies in
//   the first packs of the next one; its own warp copies these too, the spill.
// Statistics: those of all leaves are gathered in a table that every block has, once a row.
// Banks: a leaf is kept pack-major: a pack whole, and neighbouring packs (= neighbouring lanes)
//   side by side. The 8 lanes of each quarter warp then cover all 32 banks with their 16-byte
//   accesses: no conflicts. Lines of the cache arrive as lines of the 32 banks: parts that began 16
//   bytes off took a tenth longer (H200, float32, 24576 columns, fraction of the copy rate: 0.97,
//   shifted 0.89).
// Requires: inputs on the packs of the result; shared memory for kInputs * args.leaves *
// args.leaf_slots packs, behind them the mask words, and behind them the table; blockDim.x is a
// multiple of 32; every warp has a leaf.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_SMEM_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_SMEM_CUH_

#include "core/cluster.cuh"
#include "rows/cuda/leaf_tree.cuh"
#include "rows/plan.h"

namespace jaxkernels {

static_assert(kSmemLineBytes == kLinePacks * kPackBytes,
              "lines of the cache become lines of banks");

template <typename Op, bool kAligned>
__global__ void __maxnreg__(SmemRegisters(Pack<typename Op::Storage>::kSize, Op::kInputs))
    SmemTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using View = RowView<Op, kAligned>;
  using Found = typename Op::Found;
  constexpr int kHeld = SmemHeldPacks(Pack<T>::kSize, Op::kInputs);
  // Under a name of its own: to the compiler, equal names are one array of one alignment.
  extern __shared__ __align__(kSmemLineBytes) unsigned char row_smem[];
  __shared__ typename ClusterTable<Found>::Scratch table_scratch;
  const int slots = args.leaves * args.leaf_slots;
  Pack<T>* const row_packs = reinterpret_cast<Pack<T>*>(row_smem);
  auto* const row_mask = reinterpret_cast<typename Op::MaskWord*>(row_packs + Op::kInputs * slots);
  void* const behind_masks = row_mask + (kHasMask<Op> ? slots : 0);
  const int lane = threadIdx.x % kWarpSize;
  const int first_leaf = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  const int leaf_count = CountLeaves(args.cols, Pack<T>::kSize);
  const int first_pack = ClusterRank() * args.leaves * kLeafPacks;

  const RowBatches::Rows rows = args.batches.RowsOf(blockIdx.x / ClusterBlocks(), args.rows);
  // Past the last of its rows there is nothing to fetch, as past the last of all.
  const auto view_of = [&](int64_t row) {
    return View(args, row < rows.end ? row : args.rows)
        .PartFromLine(first_pack, args.leaves * kLeafPacks + kLinePacks);
  };
  const auto shift_of = [&](const View& view) {
    return LeafShift{view.packs > 0 ? view.lead + first_pack : 0, view.head};
  };
  const auto slot_of = [&](int leaf, int turn) {
    return leaf * args.leaf_slots + turn * kWarpSize + lane;
  };
  const auto index_of = [&](int leaf, int turn) {
    return leaf * kLeafPacks + turn * kWarpSize + lane;
  };
  const auto start_copy = [&](const View& view, int leaf, int turn) {
    const int index = index_of(leaf, turn), slot = slot_of(leaf, turn);
    if (!view.Sees(index)) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      Pack<T>* const to = &row_packs[i * slots + slot];
      if (i == 0 || Op::kSharesRows) {
        // As in LoadPack: the one pack that the array does not fill is left to MaskPack.
        if (view.Present(index) < Pack<T>::kSize) continue;
        CopyPackAsync(to, reinterpret_cast<const Pack<T>*>(args.in[i]) + view.first + index);
      } else if constexpr (!Op::kSharesRows) {
        CopyShiftedPack<Op>(to, args.in[i], view, index);
      }
    }
    if constexpr (kHasMask<Op>) {
      if (view.IsMasked()) CopyMask<Op>(&row_mask[slot], view, index);
    }
  };
  const auto start_spill = [&](const View& view, int leaf) {
    if (lane < shift_of(view).Spill()) start_copy(view, leaf, kLeafTurns);
  };
  const auto read = [&](int slot, InputPacks<Op>& pack) {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) pack.input[i] = row_packs[i * slots + slot];
  };
  // Reads a pack for the first time, and replaces what the row does not see of it; where it lies,
  // too, if it will be read again.
  const auto read_masked = [&](const View& view, int leaf, int turn, bool is_held,
                               InputPacks<Op>& pack) {
    const int index = index_of(leaf, turn), slot = slot_of(leaf, turn);
    if (!view.Sees(index) || (turn == kLeafTurns && lane >= shift_of(view).Spill())) {
      FillPacks<Op>(pack);
      return;
    }
    read(slot, pack);
    if (!(view.IsMasked() || view.IsCut(index) || view.IsPartial(index))) return;
    if constexpr (kHasMask<Op>) pack.mask = row_mask[slot];
    MaskPacks<Op>(pack, args, view, index);
    HidePacks<Op>(pack, view, index);
    if (is_held) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) row_packs[i * slots + slot] = pack.input[i];
  };

  View view = view_of(rows.first);
  for (int leaf = first_leaf; leaf < args.leaves; leaf += warps) {
#pragma unroll
    for (int turn = 0; turn < kLeafTurns; ++turn) start_copy(view, leaf, turn);
    start_spill(view, leaf);
  }
  ClusterTable<Found> table(table_scratch, static_cast<Found*>(behind_masks),
                            args.leaves * ClusterBlocks());  // waits for the other blocks meanwhile

  for (int64_t row = rows.first; row < rows.end; row += rows.step) {
    const View next = view_of(row + rows.step);
    const LeafShift shift = shift_of(view);
    InputPacks<Op> held[kHeld];

    // Load.
    WaitForCopies();
#pragma unroll
    for (int h = 0; h < kHeld; ++h) read_masked(view, first_leaf, h, true, held[h]);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) start_copy(next, first_leaf, h);

    // Reduce.
    const auto reduce = [&](int leaf, auto is_first) {
      constexpr bool kFirst = decltype(is_first)::value;
      auto found = RowStatistics<Op>::Empty();
      if (!view.IsBlind(leaf * kLeafPacks, kLeafPacks + kLinePacks)) {
        found = StatisticsOfLeaf<kAligned>(args.op, shift, [&](int turn, bool again) {
          InputPacks<Op> pack;
          if (kFirst && turn < kHeld) {
            pack = held[turn < kHeld ? turn : 0];
            ForgetPacks<Op>(pack);
          } else if (again && view.Sees(index_of(leaf, turn)) &&
                     (turn < kLeafTurns || lane < shift.Spill())) {
            read(slot_of(leaf, turn), pack);
          } else if (again) {
            FillPacks<Op>(pack);
          } else {
            read_masked(view, leaf, turn, false, pack);
          }
          return pack;
        });
      }
      table.Put(ClusterRank() * args.leaves + leaf, found);
    };
    reduce(first_leaf, std::true_type());
#pragma unroll 1
    for (int leaf = first_leaf + warps; leaf < args.leaves; leaf += warps) {
      reduce(leaf, std::false_type());
    }
    auto of_row = StatisticsOfRow<Op>(table.Wait(), leaf_count);

    // Store.
    if constexpr (Op::kUsesMax) of_row.max = Op::Reference(of_row.max);
    const typename Op::Row constants = RowOf(args, row, of_row);
    if constexpr (Op::kStoresScalar) {
      if (threadIdx.x == 0 && ClusterRank() == 0) args.StoreScalar(row, constants.result);
    }
    const auto finish = [&](int leaf, int turn, auto get) {
      const int index = index_of(leaf, turn);
      if (Op::kStoresScalar || !view.Has(index)) return;
      C result[Pack<T>::kSize];
      if (view.IsBlind(index - lane, kWarpSize)) {
        if constexpr (Op::kHides) FinishHidden<Op>(constants, result);
      } else {
        InputPacks<Op> pack;
        get(pack);
        if constexpr (!Op::kStoresScalar) FinishPacks(args.op, pack, constants, result);
      }
      StorePack(args.out, view, index, result);
    };
    const auto finish_rest = [&](int leaf, int turn) {
      finish(leaf, turn, [&](InputPacks<Op>& pack) { read(slot_of(leaf, turn), pack); });
      start_copy(next, leaf, turn);
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      finish(first_leaf, h, [&](InputPacks<Op>& pack) { pack = held[h]; });
    }
#pragma unroll
    for (int turn = kHeld; turn < kLeafTurns; ++turn) finish_rest(first_leaf, turn);
    start_spill(next, first_leaf);
#pragma unroll 1
    for (int leaf = first_leaf + warps; leaf < args.leaves; leaf += warps) {
#pragma unroll
      for (int turn = 0; turn < kLeafTurns; ++turn) finish_rest(leaf, turn);
      start_spill(next, leaf);
    }
    view = next;
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_SMEM_CUH_
