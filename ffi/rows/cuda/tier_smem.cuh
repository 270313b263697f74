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
  // Requires: the row has the pack.
  const auto start_copy = [&](const View& view, int index, int slot) {
    if (Op::kHides && !view.Sees(index)) return;
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
  // The packs of the lane in a leaf that the row has: those of turns [begin, end), and its spill.
  struct Turns {
    int index, slot;  // of turn 0
    int begin, end;
    bool has_spill;
  };
  const auto turns_of = [&](const View& view, int leaf) {
    const int index = leaf * leaf_packs + lane, left = view.packs - index;
    return Turns{index, leaf * args.leaf_slots + lane, index < view.lead ? 1 : 0,
                 min(max((left + kWarpSize - 1) / kWarpSize, 0), turns),
                 lane < shift_of(view).Spill() && left > leaf_packs};
  };
  const auto copy_turns = [&](const View& view, const Turns& own, int begin, int end) {
#pragma unroll 4
    for (int turn = max(begin, own.begin); turn < min(end, own.end); ++turn) {
      start_copy(view, own.index + turn * kWarpSize, own.slot + turn * kWarpSize);
    }
  };
  const auto copy_spill = [&](const View& view, const Turns& own) {
    if (own.has_spill) start_copy(view, own.index + leaf_packs, own.slot + leaf_packs);
  };
  // Replaces what the row does not see of a pack, where it lies.
  const auto mask_there = [&](const View& view, int index, int slot) {
    InputPacks<Op> pack;
    if (view.Sees(index)) {
      if (!(view.IsMasked() || view.IsCut(index) || view.IsPartial(index))) return;
      read(slot, pack);
      if constexpr (kHasMask<Op>) pack.mask = row_mask[slot];
      MaskPacks<Op>(pack, args, view, index);
      HidePacks<Op>(pack, view, index);
    } else {
      FillPacks<Op>(pack);
    }
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) row_packs[i * slots + slot] = pack.input[i];
  };
  // The same for all packs of the lane, so that the loops over them need not ask. Only the last one
  // of the row may need it, unless the operation hides elements; elements before the row are those
  // before its first leaf.
  const auto mask_all = [&](const View& view, const Turns& own) {
    if constexpr (Op::kHides) {
      for (int turn = own.begin; turn < own.end; ++turn) {
        mask_there(view, own.index + turn * kWarpSize, own.slot + turn * kWarpSize);
      }
      if (own.has_spill) mask_there(view, own.index + leaf_packs, own.slot + leaf_packs);
    } else if constexpr (!kAligned) {
      const int to_last = view.packs - 1 - own.index;
      const bool is_last = to_last >= 0 && to_last % kWarpSize == 0;
      const bool is_turn = is_last && to_last < leaf_packs;
      if (is_turn || (is_last && to_last == leaf_packs && own.has_spill)) {
        mask_there(view, own.index + to_last, own.slot + to_last);
      }
    }
  };

  View view = view_of(rows.first);
  for (int leaf = first_leaf; leaf < args.leaves; leaf += warps) {
    const Turns own = turns_of(view, leaf);
    copy_turns(view, own, 0, turns);
    copy_spill(view, own);
  }
  ClusterTable<Found> table(table_scratch, static_cast<Found*>(behind_masks),
                            args.leaves * ClusterBlocks());  // waits for the other blocks meanwhile

  for (int64_t row = rows.first; row < rows.end; row += rows.step) {
    const LeafShift shift = shift_of(view);
    InputPacks<Op> held[kHeld];

    // Load and reduce.
    WaitForCopies();
    const auto reduce = [&](int leaf, auto is_first) {
      constexpr bool kFirst = decltype(is_first)::value;
      const Turns own = turns_of(view, leaf);
      mask_all(view, own);
      if constexpr (kFirst) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          if (h < own.end) read(own.slot + h * kWarpSize, held[h]);
        }
        const View next = view_of(row + rows.step);
        copy_turns(next, turns_of(next, leaf), 0, kHeld);
      }
      auto found = RowStatistics<Op>::Empty();
      if (!view.IsBlind(own.index - lane, leaf_packs + kLinePacks)) {
        found = StatisticsOfLeaf<kAligned>(args.op, shift, [&](bool again, auto body) {
          const auto visit = [&](int slot, LeafPlace place) {
            InputPacks<Op> pack;
            C term[Pack<T>::kSize];
            read(slot, pack);
            body(pack, place, term);
            if (again && IsTerm<Op>(place, shift)) row_packs[slot] = reinterpret_cast<const Pack<T>&>(term);
          };
          if constexpr (kFirst) {
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
              if (h >= own.end) continue;
              const auto place = h == 0 ? LeafPlace::kFirst : LeafPlace::kWithin;
              C term[Pack<T>::kSize];
              body(held[h], place, term);
              ForgetPacks<Op>(held[h]);
              if (again && IsTerm<Op>(place, shift)) {
                held[h].input[0] = reinterpret_cast<const Pack<T>&>(term);
              }
            }
          } else if (own.end > 0) {
            visit(own.slot, LeafPlace::kFirst);
          }
#pragma unroll 4
          for (int turn = kFirst ? kHeld : 1; turn < own.end; ++turn) {
            visit(own.slot + turn * kWarpSize, LeafPlace::kWithin);
          }
          if (own.has_spill) visit(own.slot + leaf_packs, LeafPlace::kSpill);
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

    // Store, and fetch the next row.
    const View next = view_of(row + rows.step);
    const auto finish_leaf = [&](int leaf, auto is_first) {
      constexpr bool kFirst = decltype(is_first)::value;
      const Turns own = turns_of(view, leaf), of_next = turns_of(next, leaf);
      const LeafConstants<Op> constants(args, row, of_row, leaves, leaf_of_block + leaf);
      if constexpr (Op::kStoresScalar) {
        if (leaf_of_block + leaf == 0 && lane == 0) args.StoreScalar(row, constants.own.result);
        copy_turns(next, of_next, kFirst ? kHeld : 0, turns);
      } else {
        const auto finish = [&](const InputPacks<Op>& pack, int index, LeafPlace place) {
          C result[Pack<T>::kSize];
          if (view.IsBlind(index, 1)) {
            if constexpr (Op::kHides) FinishHidden<Op>(constants.own, result);
          } else {
            constants.Finish(args.op, pack, place, shift, IsTerm<Op>(place, shift), result);
          }
          StorePack(args.out, view, index, result);
        };
        const auto finish_there = [&](int distance, LeafPlace place) {
          InputPacks<Op> pack;
          read(own.slot + distance, pack);
          finish(pack, own.index + distance, place);
        };
        if constexpr (kFirst) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            if (h < own.end && (h > 0 || own.begin == 0)) {
              finish(held[h], own.index + h * kWarpSize,
                     h == 0 ? LeafPlace::kFirst : LeafPlace::kWithin);
            }
          }
        } else {
          if (own.begin == 0 && own.end > 0) finish_there(0, LeafPlace::kFirst);
          copy_turns(next, of_next, 0, 1);
        }
#pragma unroll 2
        for (int turn = kFirst ? kHeld : 1; turn < own.end; ++turn) {
          finish_there(turn * kWarpSize, LeafPlace::kWithin);
          if (turn < of_next.end) {
            start_copy(next, of_next.index + turn * kWarpSize, of_next.slot + turn * kWarpSize);
          }
        }
        copy_turns(next, of_next, max(own.end, kFirst ? kHeld : 1), turns);
        if (own.has_spill && leaf_of_block + leaf == leaf_count - 1) {  // no other's
          finish_there(leaf_packs, LeafPlace::kSpill);
        }
      }
      copy_spill(next, of_next);
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
