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
// Requires: shared memory for kInputs * SmemSlots packs; blockDim.x is a multiple of 32.
#ifndef JAXKERNELS_SOFTMAX_TIER_BLOCK_SMEM_CUH_
#define JAXKERNELS_SOFTMAX_TIER_BLOCK_SMEM_CUH_

#include "softmax/plan.h"
#include "softmax/row_args.cuh"

namespace jaxkernels {

template <typename Op, bool kAligned>
__global__ void __maxnreg__(kBlockTierRegisters) BlockSmemTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  using Window = RowWindow<T, kAligned>;
  // A kept term goes back to shared memory, where only a value of the same size fits.
  constexpr bool kKeep = Op::kKeepsTerm && sizeof(T) == sizeof(C);
  constexpr int kHeld = kBlockTierHeldPacks / Op::kInputs;
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  Pack<T>* const row_packs = reinterpret_cast<Pack<T>*>(dynamic_smem);
  __shared__ typename BlockReducer<C>::Scratch scratch;
  BlockReducer<C> block(scratch);
  const int slots = static_cast<int>(SmemSlots(args.cols, Pack<T>::kSize));
  const int threads = blockDim.x, lane = threadIdx.x % kWarpSize;

  const auto window_of = [&](int64_t row) {
    return Window(row, args.rows, args.cols).StartAtLine();
  };
  const auto start_copy = [&](const Window& window, int index) {
    if (!window.Has(index)) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      CopyPackAsync(&row_packs[i * slots + index],
                    reinterpret_cast<const Pack<T>*>(args.in[i]) + window.first + index,
                    window.Present(index));
    }
  };
  const auto read = [&](int index, InputPacks<Op>& pack) {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) pack[i] = row_packs[i * slots + index];
  };
  // A last pack that is not held is masked where it lies, so that the loops over the rest need not
  // ask.
  const auto mask_last = [&](const Window& window) {
    const int last = window.packs - 1;
    if (kAligned || last < kHeld * threads || last % threads != threadIdx.x) return;
    InputPacks<Op> pack;
    read(last, pack);
    MaskPacks<Op>(pack, args, window, last);
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) row_packs[i * slots + last] = pack[i];
  };

  Window window = window_of(blockIdx.x);
  for (int p = threadIdx.x; p < window.packs; p += threads) start_copy(window, p);

  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const Window next = window_of(row + gridDim.x);
    InputPacks<Op> held[kHeld];
    C held_term[kHeld][Pack<T>::kSize];
    C max = Op::Fill(), sum = 0;
    // The held packs in turn; a warp skips the turns in which none of its lanes has a pack.
    const auto for_held = [&](auto body) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int p = threadIdx.x + h * threads;
        if (p - lane < window.packs) body(h, p);
      }
    };
    const int rest = threadIdx.x + kHeld * threads;

    // Load.
    WaitForCopies();
    mask_last(window);
    for_held([&](int h, int p) {
      if (window.Has(p)) {
        read(p, held[h]);
        MaskPacks<Op>(held[h], args, window, p);
      } else {
        FillPacks<Op>(held[h]);
      }
    });
#pragma unroll
    for (int h = 0; h < kHeld; ++h) start_copy(next, threadIdx.x + h * threads);

    // Reduce.
    if constexpr (Op::kUsesMax) {
      for_held([&](int h, int) {
        max = Max(max, MaxOfPack(held[h][0]));
        ForgetPacks<Op>(held[h]);
      });
#pragma unroll 4
      for (int p = rest; p < window.packs; p += threads) {
        InputPacks<Op> pack;
        read(p, pack);
        max = Max(max, MaxOfPack(pack[0]));
      }
      max = block.template AllReduce<MaxReduction<C>>(max);
    }
    for_held([&](int h, int) {
      sum += SumOfPacks<Op>(held[h], max, held_term[h]);
      ForgetPacks<Op>(held[h]);
    });
#pragma unroll 4
    for (int p = rest; p < window.packs; p += threads) {
      InputPacks<Op> pack;
      C term[Pack<T>::kSize];
      read(p, pack);
      sum += SumOfPacks<Op>(pack, max, term);
      if constexpr (kKeep) row_packs[p] = *reinterpret_cast<const Pack<T>*>(term);
    }
    sum = block.template AllReduce<SumReduction<C>>(sum);

    // Store.
    const typename Op::Row constants(max, sum);
    for_held([&](int h, int p) {
      if (!window.Has(p)) return;
      C result[Pack<T>::kSize];
      if constexpr (kKeep) {
        FinishTerms<Op>(held_term[h], constants, result);
      } else {
        FinishPacks<Op>(held[h], constants, result);
      }
      StorePack(args.out, window, p, result);
    });
#pragma unroll 2
    for (int p = rest; p < slots; p += threads) {
      if (p < window.packs) {
        C result[Pack<T>::kSize];
        if constexpr (kKeep) {
          FinishTerms<Op>(row_packs[p].element, constants, result);
        } else {
          InputPacks<Op> pack;
          read(p, pack);
          FinishPacks<Op>(pack, constants, result);
        }
        StorePack(args.out, window, p, result);
      }
      start_copy(next, p);
    }
    window = next;
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_TIER_BLOCK_SMEM_CUH_
