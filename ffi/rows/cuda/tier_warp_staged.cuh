// Tier `warp`, short rows that begin within a pack: one lane works on a row in the shared memory of
// its warp.
//
// Peeling the head and tail of a short row costs more than the row. 32 rows together, a chunk,
// begin and end on pack boundaries again. H200, bfloat16, 33 columns, fraction of the copy rate
// (2026-11): peeled 0.40.
//
// Work split: a warp owns a chunk of 32 consecutive rows and walks the chunks grid-stride. Lane l
//   moves packs l, l + 32, ... of the chunk and computes row l, so that no lane waits for another
//   in a reduction.
// Memory: one read and one write per element in 16-byte packs. The asynchronous copies of the
//   warp's next chunk start as soon as the packs of this one are stored.
// Banks: lanes are cols elements apart; as cols is no multiple of a pack, at most two of them meet
//   in a bank.
// Requires: 32 * cols is a multiple of the pack (any cols); shared memory for kInputs chunks a
//   warp.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_CUH_

#include "rows/cuda/staged_row.cuh"
#include "rows/plan.h"

namespace jaxkernels {

template <typename Op>
__global__ void __launch_bounds__(kStagedTierThreads) WarpStagedTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
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
  const auto store = [&](int64_t begin, int p) {
    T* const target = args.out + begin + p * Pack<T>::kSize;
    const int count = present(begin, p);
    if (count == Pack<T>::kSize) {
      *reinterpret_cast<Pack<T>*>(target) = chunk_pack[p];
    } else {
      for (int j = 0; j < count; ++j) target[j] = chunk_pack[p].element[j];
    }
  };
  StagedRow<Op> row(args.op, chunk_element + lane * cols, cols, chunk_size, 1);

  const int64_t step = static_cast<int64_t>(gridDim.x) * warps_per_block * chunk_size;
  int64_t begin = (static_cast<int64_t>(blockIdx.x) * warps_per_block + warp) * chunk_size;
  for (int p = lane; p < chunk_packs; p += kWarpSize) start_copy(begin, p);

  for (; begin < total; begin += step) {
    // Load.
    WaitForCopies();
    __syncwarp();
    const int64_t index = begin / cols + lane;
    if constexpr (Op::kHides) {
      if (index < args.rows) row.Hide(index, cols, 0);
    }

    // Reduce, and finish in place.
    auto found = RowStatistics<Op>::Empty();
    if constexpr (Op::kUsesMax) found.max = Op::Reference(row.MaxOfLane());
    row.AddTermsOfLane(found.max, found.sum);
    const typename Op::Row constants = RowOf(args, index, found);
    if constexpr (Op::kStoresScalar) {
      args.StoreScalar(index, constants.result);
    } else {
      row.FinishInPlace(constants);
    }

    // Store, and fetch the next chunk into the places that become free.
    __syncwarp();
    for (int p = lane; p < chunk_packs; p += kWarpSize) {
      if constexpr (!Op::kStoresScalar) store(begin, p);
      start_copy(begin + step, p);
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_CUH_
