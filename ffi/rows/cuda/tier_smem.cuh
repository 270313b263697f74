// Tiers `block_smem` and `cluster`: a row lives in the shared memory and the registers of a block,
// or of the blocks of a cluster.
//
// Work split: each block of a cluster has an equal number of cache lines of a row's window, its
// share (the whole window without clusters). Thread t owns packs t, t + blockDim.x, ... of the
// share. RowBatches (row_batches.h) gives the rows of each cluster or block.
// Memory: one read and one write per element. Asynchronous copies, all in flight at once, bring a
// row to shared memory. A thread moves its first kHeld packs to registers; then the next row's
// copies into these slots start. The other packs stay in shared memory until their results are
// stored, and then their slots are reused too. So loads overlap the arithmetic and the stores, even
// if one row fills the SM. Every thread reads only packs that it copied itself, so only the
// reductions need barriers.
// Order: that of row_shares.cuh, which tier_few_rows.cuh follows too.
// Banks: a share is stored pack-major, with neighbouring packs for neighbouring lanes. The 8 lanes
// of each quarter warp then cover all 32 banks with their 16-byte accesses, without conflicts. Each
// cache line fills one line of the 32 banks. Shares shifted by 16 bytes took a tenth longer (H200,
// float32, 24576 columns, fraction of the copy rate: 0.97, shifted 0.89).
// Requires: inputs, except a bias, aligned like the result; shared memory for kInputs *
// args.kept_packs packs (see SmemSlots), followed by the mask words; blockDim.x is a multiple
// of 32.
#pragma once

#include "rows/cuda/row_shares.cuh"
#include "rows/smem_rules.h"

namespace jaxkernels {

static_assert(kSmemLineBytes == kLinePacks * kPackBytes,
              "lines of the cache become lines of banks");

template <typename Op, bool kAligned>
__global__ void __maxnreg__(SmemRegisters(kDTypeOf<typename Op::Storage>, Op::kInputs))
    SmemTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using View = RowView<Op, kAligned>;
  constexpr bool kKeep = kKeepsShareTerms<Op>, kLed = kIsLed<Op>;
  constexpr int kClasses = kShareClasses<Op>;  // a thread's packs alternate between them
  constexpr int kHeld = SmemHeldPacks(kDTypeOf<T>, Op::kInputs);
  // Unroll factor of the loop over terms that are not held in registers. The exponentials of two
  // doubles fill the registers: 85 instructions per pack, but 101 when unrolled by four, 16 of them
  // spills.
  constexpr int kTermTurns = IsDouble(kDTypeOf<T>) ? 1 : 4 / kClasses;
  // The name must be unique: the compiler merges extern arrays of equal names and takes one
  // alignment.
  extern __shared__ __align__(kSmemLineBytes) unsigned char row_smem[];
  Pack<T>* const row_packs = reinterpret_cast<Pack<T>*>(row_smem);
  __shared__ typename RowBlockReducer<Op>::Scratch scratch;
  __shared__ typename ClusterExchange<RowStatistics<Op>>::Scratch cluster_scratch;
  __shared__ LedShare<Op> led;
  static_assert(WholeSmemLines(sizeof(scratch) + sizeof(cluster_scratch) +
                               (kIsLed<Op> ? sizeof(led) : 0)) == kShareScratchBytes<Op>);
  RowBlockReducer<Op> block(scratch);
  const int slots = args.kept_packs;
  auto* const row_mask = reinterpret_cast<typename Op::MaskWord*>(row_packs + Op::kInputs * slots);
  const int threads = blockDim.x, lane = threadIdx.x % kWarpSize;

  const RowBatches::Rows rows = args.batches.RowsOf(ClusterIndex(), args.rows);
  // The view is empty past the block's last row, so that nothing is fetched.
  const auto view_of = [&](int64_t row) {
    return View(args, row < rows.end ? row : args.rows).PartFromLine(ClusterRank(), slots);
  };
  const auto start_copy = [&](const View& view, int index) {
    if (!view.Sees(index)) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      Pack<T>* const to = &row_packs[i * slots + index];
      if (i == 0 || Op::kSharesRows) {
        // As in LoadPack: the array may end within this pack, so MaskPack loads its elements.
        if (view.Present(index) < Pack<T>::kSize) continue;
        CopyPackAsync(to, reinterpret_cast<const Pack<T>*>(args.in[i]) + view.first + index);
      } else if constexpr (!Op::kSharesRows) {
        CopyShiftedPack<Op>(to, args.in[i], view, index);
      }
    }
    if constexpr (kHasMask<Op>) {
      if (view.IsMasked()) CopyMask<Op>(&row_mask[index], view, index);
    }
  };
  const auto read = [&](int index, InputPacks<Op>& pack) {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      if constexpr (kLed) {
        CopyPack(&pack.input[i], row_packs->element, i * slots + index);
      } else {
        pack.input[i] = row_packs[i * slots + index];
      }
    }
  };
  // Reads a pack for the first time and replaces elements that are hidden or outside the row.
  const auto read_masked = [&](const View& view, int index, InputPacks<Op>& pack) {
    read(index, pack);
    if constexpr (kHasMask<Op>) pack.mask = row_mask[index];
    MaskPacks<Op>(pack, args, view, index);
    HidePacks<Op>(pack, view, index);
  };
  // Masks the packs that stay in shared memory in place, so that the loops over them need no test.
  // Unless the operation hides elements, only the last pack may need it: the first is in registers.
  // Masked logits are hidden by the loop that finds the maximum.
  const auto mask_rest = [&](const View& view) {
    const int last = view.packs - 1, first_rest = kHeld * threads;
    if (!Op::kHides && (kAligned || last < first_rest || last % threads != threadIdx.x)) return;
    const int begin = Op::kHides ? first_rest + threadIdx.x : last;
    for (int p = begin; p <= last; p += threads) {
      if (!view.Sees(p) || !(view.IsMasked() || view.IsCut(p) || view.IsPartial(p))) continue;
      InputPacks<Op> pack;
      read_masked(view, p, pack);
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) row_packs[i * slots + p] = pack.input[i];
    }
  };

  View view = view_of(rows.first);
  for (int p = threadIdx.x; p < view.packs; p += threads) start_copy(view, p);
  ClusterExchange<RowStatistics<Op>> cluster(cluster_scratch);
  cluster.WaitForBlocks();

  for (int64_t row = rows.first; row < rows.end; row += rows.step) {
    const View next = view_of(row + rows.step);
    InputPacks<Op> held[kHeld];
    C held_term[kHeld][Pack<T>::kSize];
    auto found = RowStatistics<Op>::Empty();
    bool has_max = true;  // whether this thread may have the maximum
    C largest = 0;        // the largest element, if the operation uses the maximum
    C sum[kClasses][Op::kSums] = {};
    const int label = args.LabelOf(row);
    const auto& op = args.OpOf(row);
    // Calls body(h, p) for each held pack; a warp skips iterations in which none of its lanes has a
    // pack.
    const auto for_held = [&](auto body) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int p = threadIdx.x + h * threads;
        if (p - lane < view.packs) body(h, p);
      }
    };
    const int rest = threadIdx.x + kHeld * threads;

    // Load.
    WaitForCopies();
    mask_rest(view);
    for_held([&](int h, int p) {
      PlaceColumn(held[h], view, p);
      if (view.Sees(p)) {
        read_masked(view, p, held[h]);
      } else {
        FillPacks<Op>(held[h]);
      }
      if constexpr (kLed) ForgetPacks<Op>(held[h]);
    });
#pragma unroll
    for (int h = 0; h < kHeld; ++h) start_copy(next, threadIdx.x + h * threads);

    // Reduce.
    if constexpr (Op::kUsesMax) {
      for_held([&](int h, int) {
        found.max = Max(found.max, MaxOfPacks(op, held[h]));
        ForgetPacks<Op>(held[h]);
      });
#pragma unroll 4
      for (int p = rest; p < view.packs; p += threads) {
        if (view.IsBlind(p, 1)) continue;
        InputPacks<Op> pack;
        read(p, pack);
        if constexpr (kMasksLogits<Op>) {
          pack.mask = row_mask[p];
          HidePacks<Op>(pack, view, p);
          CopyPack(&row_packs[p], pack.input[0].element, 0);
        }
        found.max = Max(found.max, MaxOfPacks(op, pack));
      }
      const C own_max = ScaledMax(op, found.max);
      largest = found.max;
      found.max = ReduceMax(op, block, largest);
      if constexpr (Op::kTakesLabel) has_max = own_max == found.Reference(found.max);
    }
    const C reference = found.Reference(found.max);
    const auto add_all = [&](const auto& terms) {
      for_held([&](int h, int p) {
        if (view.IsBlind(p - lane, kWarpSize)) return;
        AddPacks(op, terms, held[h], reference, held_term[h], sum[h % kClasses], has_max);
        ForgetPacks<Op>(held[h]);
      });
      const auto add_rest = [&](int p, C(&of_class)[Op::kSums]) {
        if (view.IsBlind(p, 1)) return;
        InputPacks<Op> pack;
        C term[Pack<T>::kSize];
        read(p, pack);
        PlaceColumn(pack, view, p);
        AddPacks(op, terms, pack, reference, term, of_class, has_max);
        if constexpr (kKeep) row_packs[p] = *reinterpret_cast<const Pack<T>*>(term);
      };
      int next_rest = rest;
#pragma unroll kTermTurns
      for (; next_rest + (kClasses - 1) * threads < view.packs; next_rest += kClasses * threads) {
#pragma unroll
        for (int c = 0; c < kClasses; ++c) {
          add_rest(next_rest + c * threads, sum[(kHeld + c) % kClasses]);
        }
      }
      if (kClasses > 1 && next_rest < view.packs) add_rest(next_rest, sum[kHeld % kClasses]);
    };
    WithTerms(op, reference, largest, !MakesAllSums(op), add_all);
    const auto constants = [&] {
      if constexpr (kLed) {
        LeadRow(args, op, view, row, label, block, cluster, sum, found, led);
        return static_cast<typename Op::Columns>(led.row);
      } else {
        const GivenRow<Op> given = args.GivenOf(op, row, label);
        AllReduceClassSums(op, block, sum, found);
        MergeShares(op, cluster, found);
        return RowOf<Op>(found, given);
      }
    }();

    // Store.
    if constexpr (Op::kStores > 0 && !kLed) {
      if (threadIdx.x == 0 && ClusterRank() == 0) args.StoreScalars(row, constants.scalars);
    }
    const auto store = [&](int p, C(&result)[Pack<T>::kSize]) {
      if constexpr (kLed) {
        if (constants.is_left_out) {
#pragma unroll
          for (C& element : result) element = constants.constant;
        }
      }
      StoreResults(args, view, p, result);
    };
    const auto store_all = [&](const auto& terms) {
      if constexpr (Op::kStoresElements) {
        for_held([&](int h, int p) {
          if (!view.Has(p)) return;
          C result[Pack<T>::kSize];
          if (view.IsBlind(p - lane, kWarpSize)) {
            if constexpr (Op::kHides) FinishHidden<Op>(constants, result);
          } else if constexpr (kKeep) {
            FinishTerms(op, held_term[h], constants, result);
          } else {
            FinishPacks(op, terms, view, held[h], constants, p, result);
          }
          store(p, result);
        });
      }
#pragma unroll 2
      for (int p = rest; p < slots; p += threads) {
        if constexpr (Op::kStoresElements) {
          if (p < view.packs) {
            C result[Pack<T>::kSize];
            if (view.IsBlind(p, 1)) {
              if constexpr (Op::kHides) FinishHidden<Op>(constants, result);
            } else if constexpr (kKeep) {
              FinishTerms(op, row_packs[p].element, constants, result);
            } else {
              InputPacks<Op> pack;
              read(p, pack);
              PlaceColumn(pack, view, p);
              FinishPacks(op, terms, view, pack, constants, p, result);
            }
            store(p, result);
          }
        }
        start_copy(next, p);
      }
    };
    WithTermsOf(op, constants, store_all);
    if constexpr (kLed) {
      // Overwrites the result that the same thread has stored there.
      if (led.labelled_thread == static_cast<int>(threadIdx.x))
        StoreAtLabel(args, view, led.row, led.slope);
    }
    ClearHidden(args, view, constants, threadIdx.x, view.packs, threads);
    view = next;
  }
}

}  // namespace jaxkernels
