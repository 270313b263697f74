// Tier `block_smem`: a row lands in the shared memory of a block and lives there and in the block's
// registers.
//
// Work split: thread t owns packs t, t + blockDim.x, ... of the window; a block walks the rows
// grid-stride. Memory: one read and one write per element. A row travels to shared memory by
// asynchronous copies, all in flight at
//   once. A thread takes its first kHeld packs into registers, and the same packs of the block's
//   next row set out for their places at once; what is left of the row stays in shared memory until
//   its result is stored, and then makes place too. So loads run below the arithmetic and the
//   stores, even where one row fills the SM. Every thread touches only packs that it copied itself,
//   so the data needs no barrier; the two all-reductions are the only ones.
// Banks: the row is kept pack-major: a pack whole, and neighbouring packs (= neighbouring lanes)
// side by side. The 8
//   lanes of each quarter warp then cover all 32 banks with their 16-byte accesses: no conflicts.
// Requires: shared memory for kInputs * SmemSlots packs, and the mask words behind them; blockDim.x
// is a multiple of 32.
#ifndef JAXKERNELS_SOFTMAX_TIER_BLOCK_SMEM_CUH_
#define JAXKERNELS_SOFTMAX_TIER_BLOCK_SMEM_CUH_

#include "softmax/plan.h"
#include "softmax/row_steps.cuh"

namespace jaxkernels {

template <typename Op, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters) BlockSmemTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using View = RowView<Op, kAligned>;
  // A kept term goes back to shared memory, where only a value of the same size fits.
  constexpr bool kKeep = Op::kKeepsTerm && sizeof(T) == sizeof(C);
  constexpr int kHeld = kSmemHeldPacks / Op::kInputs;
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  Pack<T>* const row_packs = reinterpret_cast<Pack<T>*>(dynamic_smem);
  __shared__ typename BlockReducer<C>::Scratch scratch;
  BlockReducer<C> block(scratch);
  const int slots = static_cast<int>(SmemSlots(args.cols, Pack<T>::kSize));
  auto* const row_mask = reinterpret_cast<typename Op::MaskWord*>(row_packs + Op::kInputs * slots);
  const int threads = blockDim.x, lane = threadIdx.x % kWarpSize;

  const auto view_of = [&](int64_t row) { return View(args, row).StartAtLine(); };
  const auto start_copy = [&](const View& view, int index) {
    if (!view.Sees(index)) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      Pack<T>* const to = &row_packs[i * slots + index];
      if (i == 0 || Op::kSharesRows) {
        // As in LoadPack: the one pack that the array does not fill is left to MaskPack.
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
    for (int i = 0; i < Op::kInputs; ++i) pack.input[i] = row_packs[i * slots + index];
  };
  // Reads a pack for the first time, and replaces what the row does not see of it.
  const auto read_masked = [&](const View& view, int index, InputPacks<Op>& pack) {
    read(index, pack);
    if constexpr (kHasMask<Op>) pack.mask = row_mask[index];
    MaskPacks<Op>(pack, args, view, index);
    HidePacks<Op>(pack, view, index);
  };
  // Masks packs that are not held where they lie, so that the loops over them need not ask. Only
  // the last one may need it, unless the operation hides elements.
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

  View view = view_of(blockIdx.x);
  for (int p = threadIdx.x; p < view.packs; p += threads) start_copy(view, p);

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const View next = view_of(row + gridDim.x);
    InputPacks<Op> held[kHeld];
    C held_term[kHeld][Pack<T>::kSize];
    C max = Op::Fill(), sum = 0;
    // The held packs in turn; a warp skips the turns in which none of its lanes has a pack.
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
      if (view.Sees(p)) {
        read_masked(view, p, held[h]);
      } else {
        FillPacks<Op>(held[h]);
      }
    });
#pragma unroll
    for (int h = 0; h < kHeld; ++h) start_copy(next, threadIdx.x + h * threads);

    // Reduce.
    if constexpr (Op::kUsesMax) {
      for_held([&](int h, int) {
        max = Max(max, MaxOfPacks(args.op, held[h]));
        ForgetPacks<Op>(held[h]);
      });
#pragma unroll 4
      for (int p = rest; p < view.packs; p += threads) {
        if (view.IsBlind(p, 1)) continue;
        InputPacks<Op> pack;
        read(p, pack);
        max = Max(max, MaxOfPacks(args.op, pack));
      }
      max = Op::Reference(block.template AllReduce<MaxReduction<C>>(max));
    }
    for_held([&](int h, int p) {
      if (view.IsBlind(p - lane, kWarpSize)) return;
      sum += SumOfPacks(args.op, held[h], max, held_term[h]);
      ForgetPacks<Op>(held[h]);
    });
#pragma unroll 4
    for (int p = rest; p < view.packs; p += threads) {
      if (view.IsBlind(p, 1)) continue;
      InputPacks<Op> pack;
      C term[Pack<T>::kSize];
      read(p, pack);
      sum += SumOfPacks(args.op, pack, max, term);
      if constexpr (kKeep) row_packs[p] = *reinterpret_cast<const Pack<T>*>(term);
    }
    sum = block.template AllReduce<SumReduction<C>>(sum);

    // Store.
    const typename Op::Row constants(max, sum);
    for_held([&](int h, int p) {
      if (!view.Has(p)) return;
      C result[Pack<T>::kSize];
      if (view.IsBlind(p - lane, kWarpSize)) {
        if constexpr (Op::kHides) FinishHidden<Op>(constants, result);
      } else if constexpr (kKeep) {
        FinishTerms(args.op, held_term[h], constants, result);
      } else {
        FinishPacks(args.op, held[h], constants, result);
      }
      StorePack(args.out, view, p, result);
    });
#pragma unroll 2
    for (int p = rest; p < slots; p += threads) {
      if (p < view.packs) {
        C result[Pack<T>::kSize];
        if (view.IsBlind(p, 1)) {
          if constexpr (Op::kHides) FinishHidden<Op>(constants, result);
        } else if constexpr (kKeep) {
          FinishTerms(args.op, row_packs[p].element, constants, result);
        } else {
          InputPacks<Op> pack;
          read(p, pack);
          FinishPacks(args.op, pack, constants, result);
        }
        StorePack(args.out, view, p, result);
      }
      start_copy(next, p);
    }
    view = next;
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_TIER_BLOCK_SMEM_CUH_
