// Tier `warp`, short rows that begin within a pack: one lane works on a row in the shared memory of
// its warp.
//
// Peeling the head and tail of a short row costs more than the row (H200, bfloat16, 33 columns:
// 0.40 of the copy rate). But 32 rows together, a chunk, begin and end on pack boundaries again.
//
// Work split: a warp owns a chunk of 32 consecutive rows and walks the chunks grid-stride. Lane l
// moves packs l, l + 32,
//   ... of the chunk and computes row l, so that no lane waits for another in a reduction.
// Memory: one read and one write per element in 16-byte packs. The asynchronous copies of the
// warp's next chunk start
//   as soon as the packs of this one are stored.
// Banks: lanes are cols elements apart; as cols is no multiple of a pack, at most two of them meet
// in a bank. Requires: 32 * cols is a multiple of the pack (any cols); shared memory for kInputs
// chunks a warp.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_CUH_

#include <type_traits>

#include "rows/cuda/row_steps.cuh"
#include "rows/plan.h"

namespace jaxkernels {

// Replaces what row `index` of the array does not see. `row` is its first input; the others follow
// at distances of `stride`.
template <typename Op>
__device__ void HideInPlace(const Op& op, int64_t index, typename Op::Storage* row, int cols,
                            int stride) {
  const typename Op::View seen = op.ViewOf(index, cols);
  for (int col = 0; col < cols; ++col) {
    const bool in_band = col >= seen.begin && col < seen.end;
    if (in_band && (seen.mask == nullptr || seen.mask[col] != 0)) continue;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      row[i * stride + col] = static_cast<typename Op::Storage>(Op::Fill());
    }
  }
}

template <typename Op>
__global__ void __launch_bounds__(kStagedTierThreads) WarpStagedTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  constexpr int kGroup = 4;  // elements of a row that a lane works on together
  constexpr bool kKeep = Op::kKeepsTerm && sizeof(T) == sizeof(C);
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps_per_block = blockDim.x / kWarpSize;
  const int cols = static_cast<int>(args.cols);
  const int chunk_size = kWarpSize * cols;
  const int chunk_packs = chunk_size / Pack<T>::kSize;
  Pack<T>* const chunk_pack =
      reinterpret_cast<Pack<T>*>(dynamic_smem) + warp * Op::kInputs * chunk_packs;
  T* const chunk_element = reinterpret_cast<T*>(chunk_pack);
  const int64_t total = args.rows * args.cols;

  // Elements that the array has in pack `p` of the chunk that begins at element `begin`.
  const auto present = [&](int64_t begin, int p) {
    const int64_t left = total - (begin + p * Pack<T>::kSize);
    return static_cast<int>(left < 0 ? 0 : left < Pack<T>::kSize ? left : Pack<T>::kSize);
  };
  const auto start_copy = [&](int64_t begin, int p) {
    const int count = present(begin, p);
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      Pack<T>& to = chunk_pack[i * chunk_packs + p];
      const auto* const from = reinterpret_cast<const Pack<T>*>(args.in[i] + begin) + p;
      if (count == Pack<T>::kSize) {
        CopyPackAsync(&to, from);
      } else {
        for (int j = 0; j < count; ++j) to.element[j] = from->element[j];
      }
    }
  };
  // Elements [col, col + kGroup) of this lane's row; kWhole: all of them are within it.
  T* const row = chunk_element + lane * cols;
  const auto gather = [&](auto whole, int col, C(&value)[kGroup][Op::kInputs]) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        value[j][i] = decltype(whole)::value || col + j < cols
                          ? static_cast<C>(row[i * chunk_size + col + j])
                          : Op::Fill();
      }
    }
  };
  const auto scatter = [&](auto whole, int col, const C(&value)[kGroup]) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (decltype(whole)::value || col + j < cols) row[col + j] = static_cast<T>(value[j]);
    }
  };
  const auto for_groups = [&](auto body) {
    int col = 0;
#pragma unroll 2
    for (; col + kGroup <= cols; col += kGroup) body(std::true_type(), col);
    if (col < cols) body(std::false_type(), col);
  };

  const int64_t step = static_cast<int64_t>(gridDim.x) * warps_per_block * chunk_size;
  int64_t begin = (static_cast<int64_t>(blockIdx.x) * warps_per_block + warp) * chunk_size;
  for (int p = lane; p < chunk_packs; p += kWarpSize) start_copy(begin, p);

  for (; begin < total; begin += step) {
    // Load.
    WaitForCopies();
    __syncwarp();
    if constexpr (Op::kHides) {
      const int64_t index = begin / cols + lane;
      if (index < args.rows) HideInPlace(args.op, index, row, cols, chunk_size);
    }

    // Reduce.
    C max = Op::Fill(), sum = 0;
    if constexpr (Op::kUsesMax) {
      for_groups([&](auto whole, int col) {
        C value[kGroup][Op::kInputs];
        gather(whole, col, value);
        max = Max(max, MaxOf(args.op, value));
      });
      max = Op::Reference(max);
    }
    for_groups([&](auto whole, int col) {
      C value[kGroup][Op::kInputs], term[kGroup];
      gather(whole, col, value);
      sum += SumOf(args.op, value, max, term);
      if constexpr (kKeep) scatter(whole, col, term);
    });

    // Finish in place.
    const typename Op::Row constants(max, sum);
    for_groups([&](auto whole, int col) {
      C value[kGroup][Op::kInputs], result[kGroup];
      gather(whole, col, value);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        if constexpr (kKeep) {
          result[j] = args.op.FinishTerm(value[j][0], constants);
        } else {
          result[j] = args.op.Finish(value[j], constants);
        }
      }
      scatter(whole, col, result);
    });

    // Store, and fetch the next chunk into the places that become free.
    __syncwarp();
    for (int p = lane; p < chunk_packs; p += kWarpSize) {
      T* const target = args.out + begin + p * Pack<T>::kSize;
      const int count = present(begin, p);
      if (count == Pack<T>::kSize) {
        *reinterpret_cast<Pack<T>*>(target) = chunk_pack[p];
      } else {
        for (int j = 0; j < count; ++j) target[j] = chunk_pack[p].element[j];
      }
      start_copy(begin + step, p);
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_CUH_
