// Tiers `block_smem` and `cluster`: a row lands in the shared memory of a block, or of several that
// form a cluster, and lives there and in the blocks' registers.
//
// Work split: of the window of a row each block of a cluster has as many leaves; warp w owns leaves
//   w, w + warps, ... of them (nearly always one), and lane l packs l, l + 32, ... of a leaf; a
//   cluster, or a block that is alone, walks its rows (row_batches.h).
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
  const int lane = threadIdx.x % kWarpSize, turns = args.leaf_turns;
  const int leaf_packs = turns * kWarpSize, block_packs = args.leaves * leaf_packs;
  const int first_leaf = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  const int leaf_count = CountLeaves(args.cols, Pack<T>::kSize, turns);
  const int leaf_of_block = ClusterRank() * args.leaves;

  const RowBatches::Rows rows = args.batches.RowsOf(blockIdx.x / ClusterBlocks(), args.rows);
  // Past the last of its rows there is nothing to fetch, as past the last of all.
  const auto view_of = [&](int64_t row) {
    return View(args, row < rows.end ? row : args.rows)
        .PartFromLine(ClusterRank() * block_packs, block_packs + kLinePacks);
  };
  const auto shift_of = [&](const View& view) {
    return LeafShift{view.packs > 0 ? view.lead + ClusterRank() * block_packs : 0, view.head};
  };
  const auto start_copy = [&](const View& view, int index, int slot) {
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
  const auto read = [&](int slot, InputPacks<Op>& pack) {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) pack.input[i] = row_packs[i * slots + slot];
  };
  // Reads a pack for the first time, and replaces what the row does not see of it; where it lies,
  // too, if it will be read again.
  const auto read_masked = [&](const View& view, int index, int slot, bool is_held,
                               InputPacks<Op>& pack) {
    if (!view.Sees(index)) return FillPacks<Op>(pack);
    read(slot, pack);
    if (!(view.IsMasked() || view.IsCut(index) || view.IsPartial(index))) return;
    if constexpr (kHasMask<Op>) pack.mask = row_mask[slot];
    MaskPacks<Op>(pack, args, view, index);
    HidePacks<Op>(pack, view, index);
    if (is_held) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) row_packs[i * slots + slot] = pack.input[i];
  };
  // The packs of the lane in a leaf: some turns of it, and the spill.
  const auto for_turns = [&](int leaf, int begin, int end, auto body) {
    int index = leaf * leaf_packs + begin * kWarpSize + lane;
    int slot = leaf * args.leaf_slots + begin * kWarpSize + lane;
#pragma unroll 4
    for (int turn = begin; turn < end; ++turn, index += kWarpSize, slot += kWarpSize) {
      body(index, slot);
    }
  };
  const auto for_spill = [&](const View& view, int leaf, auto body) {
    if (lane >= shift_of(view).Spill()) return;
    body((leaf + 1) * leaf_packs + lane, leaf * args.leaf_slots + leaf_packs + lane);
  };

  View view = view_of(rows.first);
  for (int leaf = first_leaf; leaf < args.leaves; leaf += warps) {
    const auto copy = [&](int index, int slot) { start_copy(view, index, slot); };
    for_turns(leaf, 0, turns, copy);
    for_spill(view, leaf, copy);
  }
  ClusterTable<Found> table(table_scratch, static_cast<Found*>(behind_masks),
                            args.leaves * ClusterBlocks());  // waits for the other blocks meanwhile

  for (int64_t row = rows.first; row < rows.end; row += rows.step) {
    const View next = view_of(row + rows.step);
    const LeafShift shift = shift_of(view);
    const auto fetch = [&](int index, int slot) { start_copy(next, index, slot); };
    InputPacks<Op> held[kHeld];
    // The held packs in turn. (A leaf may have fewer turns.)
    const auto for_held = [&](auto body) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        if (h < turns) body(held[h], h, first_leaf * leaf_packs + h * kWarpSize + lane);
      }
    };

    // Load.
    WaitForCopies();
    for_held([&](InputPacks<Op>& pack, int h, int index) {
      read_masked(view, index, first_leaf * args.leaf_slots + h * kWarpSize + lane, true, pack);
    });
    for_turns(first_leaf, 0, min(kHeld, turns), fetch);

    // Reduce.
    const auto reduce = [&](int leaf, auto is_first) {
      constexpr bool kFirst = decltype(is_first)::value;
      const int leaf_index = leaf * leaf_packs + lane;
      auto found = RowStatistics<Op>::Empty();
      if (!view.IsBlind(leaf_index - lane, leaf_packs + kLinePacks)) {
        found = StatisticsOfLeaf<kAligned>(args.op, shift, [&](bool again, auto body) {
          const auto visit = [&](int index, int slot) {
            InputPacks<Op> pack;
            C term[Pack<T>::kSize];
            if (!again || !Op::kUsesMax) {
              read_masked(view, index, slot, false, pack);
            } else if (view.Sees(index)) {
              read(slot, pack);
            } else {
              FillPacks<Op>(pack);
            }
            const auto place = index >= leaf_index - lane + leaf_packs ? LeafPlace::kSpill
                               : index == leaf_index                  ? LeafPlace::kFirst
                                                                      : LeafPlace::kWithin;
            body(pack, place, term);
            if constexpr (kKeepsLeafTerms<Op>) {
              if (again && (place == LeafPlace::kWithin || !shift.Any())) {
                row_packs[slot] = *reinterpret_cast<const Pack<T>*>(term);
              }
            }
          };
          if constexpr (kFirst) {
            for_held([&](InputPacks<Op>& pack, int h, int /*index*/) {
              C term[Pack<T>::kSize];
              body(pack, h == 0 ? LeafPlace::kFirst : LeafPlace::kWithin, term);
              ForgetPacks<Op>(pack);
              if constexpr (kKeepsLeafTerms<Op>) {
                if (again && (h > 0 || !shift.Any())) {
                  pack.input[0] = *reinterpret_cast<const Pack<T>*>(term);
                }
              }
            });
          }
          for_turns(leaf, kFirst ? kHeld : 0, turns, visit);
          if (shift.Any()) for_spill(view, leaf, visit);
        });
      }
      table.Put(leaf_of_block + leaf, found);
    };
    reduce(first_leaf, std::true_type());
#pragma unroll 1
    for (int leaf = first_leaf + warps; leaf < args.leaves; leaf += warps) {
      reduce(leaf, std::false_type());
    }
    const Found* const leaves = table.Wait();
    const auto of_row = StatisticsOfRow<Op>(leaves, leaf_count);

    // Store.
    const auto finish_leaf = [&](int leaf, auto is_first) {
      constexpr bool kFirst = decltype(is_first)::value;
      const int leaf_index = leaf * leaf_packs + lane;
      const LeafConstants<Op> constants(args, row, of_row, leaves, leaf_of_block + leaf);
      if constexpr (Op::kStoresScalar) {
        if (leaf_of_block + leaf == 0 && lane == 0) {
          args.StoreScalar(row, constants.own.result);
        }
        for_turns(leaf, kFirst ? kHeld : 0, turns, fetch);
      } else {
        const auto finish = [&](const InputPacks<Op>& pack, int index, LeafPlace place) {
          C result[Pack<T>::kSize];
          const bool is_term = place == LeafPlace::kWithin || !shift.Any();
          if (view.IsBlind(index, 1)) {
            if constexpr (Op::kHides) FinishHidden<Op>(constants.own, result);
          } else if (kKeepsLeafTerms<Op> && is_term) {
            if constexpr (kKeepsLeafTerms<Op>) {
              FinishTerms(args.op, pack.input[0].element, constants.own, result);
            }
          } else {
            constants.Finish(args.op, pack, place, shift, result);
          }
          StorePack(args.out, view, index, result);
        };
        const auto finish_rest = [&](int index, int slot, LeafPlace place) {
          if (!view.Has(index)) return;
          InputPacks<Op> pack;
          read(slot, pack);
          finish(pack, index, place);
        };
        if constexpr (kFirst) {
          for_held([&](const InputPacks<Op>& pack, int h, int index) {
            if (!view.Has(index)) return;
            finish(pack, index, h == 0 ? LeafPlace::kFirst : LeafPlace::kWithin);
          });
        }
        for_turns(leaf, kFirst ? kHeld : 0, turns, [&](int index, int slot) {
          finish_rest(index, slot, index == leaf_index ? LeafPlace::kFirst : LeafPlace::kWithin);
          fetch(index, slot);
        });
        if (leaf_of_block + leaf == leaf_count - 1) {  // whose spill is no other's
          for_spill(view, leaf, [&](int index, int slot) {
            finish_rest(index, slot, LeafPlace::kSpill);
          });
        }
      }
      for_spill(next, leaf, fetch);
    };
    finish_leaf(first_leaf, std::true_type());
#pragma unroll 1
    for (int leaf = first_leaf + warps; leaf < args.leaves; leaf += warps) {
      finish_leaf(leaf, std::false_type());
    }
    view = next;
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_SMEM_CUH_
