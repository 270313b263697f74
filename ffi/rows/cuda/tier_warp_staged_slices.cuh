// Tier `warp`, short rows of arrays that begin within a pack: staged as in tier_warp_staged.cuh,
// where chunks are whole packs. Here a chunk begins within a pack, in each array at its own place.
//
// It is a kernel of its own, because what it can do more takes 5 to 20 percent where it is not
// needed (H200, 7 and 17 columns).
//
// Work split: as there, but `lanes` neighbouring lanes compute a row (StagedRowLanes).
//
// Memory: one read and one write per element, in packs. In shared memory a chunk lies within packs
// as it lies in its input, so that all copies are asynchronous and of 16 bytes. Where the result
// lies otherwise, its packs are put together out of two on the way out.
//
// Banks: rows are cols elements apart. Where cols is no multiple of a pack, one lane takes a row,
// and at most two lanes meet in a bank. Otherwise several lanes side by side take a row, a group of
// elements each, and up to four of a warp meet.
//
// Requires: 32 * cols is a multiple of the pack (any cols); shared memory for kInputs chunks a
// warp, each a pack larger where anything begins within one.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_SLICES_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_SLICES_CUH_

#include "rows/cuda/staged_row.cuh"
#include "rows/plan.h"

namespace jaxkernels {

// Where the 32 rows of a chunk lie. Chunks are whole packs long, so that all of an array begin at
// one place of a pack.
template <typename Op>
struct ChunkLayout {
  using T = typename Op::Storage;
  static constexpr int kSize = Pack<T>::kSize;

  int cols, size;          // elements of a row, and of all
  int packs;               // that each array may need of them
  int offset;              // elements of a pack before the result
  int place[Op::kInputs];  // elements of a pack before each input

  __device__ explicit ChunkLayout(const RowArgs<Op>& args)
      : cols(static_cast<int>(args.cols)), size(kWarpSize * cols), offset(args.offset) {
    bool on_packs = offset == 0;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      const auto address = reinterpret_cast<uintptr_t>(args.in[i] + offset);
      place[i] = static_cast<int>(address % kPackBytes / sizeof(T));
      on_packs &= place[i] == 0;
    }
    packs = size / kSize + (on_packs ? 0 : 1);
  }
};

// Elements [begin, end) of a pack.
struct ElementRange {
  int begin, end;
};

// Those elements of pack `index` of a chunk that are among its first `count`; it begins `place`
// elements into a pack.
template <typename T>
__device__ ElementRange ElementsOfPack(int place, int index, int64_t count) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t end = count + place - index * kSize;
  return {index == 0 ? place : 0, static_cast<int>(end < 0 ? 0 : end < kSize ? end : kSize)};
}

// Copies elements of a pack one by one.
template <typename T>
__device__ void CopyElements(T* to, const T* from, const ElementRange& range) {
  for (int j = range.begin; j < range.end; ++j) to[j] = from[j];
}

// Starts to copy pack `index` of every input of the chunk that begins at element `begin`. `left`:
// elements of the array from there on.
template <typename Op>
__device__ void FetchPack(const RowArgs<Op>& args, const ChunkLayout<Op>& chunk,
                          Pack<typename Op::Storage>* to, int64_t begin, int64_t left, int index) {
  using T = typename Op::Storage;
  constexpr int kSize = Pack<T>::kSize;
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
    // The chunk before this one has the elements before its first pack's, but for the array's
    // first.
    ElementRange range = ElementsOfPack<T>(chunk.place[i], index, left);
    if (begin > 0) range.begin = 0;
    Pack<T>* const target = &to[i * chunk.packs + index];
    const T* const from = args.in[i] + chunk.offset - chunk.place[i] + begin + index * kSize;
    if (range.begin == 0 && range.end == kSize) {
      CopyPackAsync(target, reinterpret_cast<const Pack<T>*>(from));
    } else {
      CopyElements(target->element, from, range);
    }
  }
}

// Stores pack `index` of the result of the chunk that begins at element `begin`, out of the shared
// memory of the first input.
template <typename Op>
__device__ void StoreStagedPack(const RowArgs<Op>& args, const ChunkLayout<Op>& chunk,
                                const Pack<typename Op::Storage>* staged, int64_t begin,
                                int64_t left, int index) {
  using T = typename Op::Storage;
  constexpr int kSize = Pack<T>::kSize;
  const ElementRange own = ElementsOfPack<T>(chunk.offset, index, min(int64_t{chunk.size}, left));
  T* const target = args.out + begin + index * kSize;
  const T* const from = staged->element + chunk.place[0] - chunk.offset + index * kSize;
  if (own.begin > 0 || own.end < kSize) {
    CopyElements(target, from, own);
    return;
  }
  Pack<T> pack;
  if (chunk.place[0] == chunk.offset) {
    CopyPack(&pack, from, 0);
  } else {
    LoadAcrossPacks(&pack, from);
  }
  *reinterpret_cast<Pack<T>*>(target) = pack;
}

// Computes the rows of a chunk that lies in shared memory from `element` on, in place.
// `lanes`: that share a row; inlined, because one is much less code than any number.
// `first_row`: of the chunk, in the array.
template <typename Op>
__device__ __forceinline__ void ComputeChunk(int lanes, const RowArgs<Op>& args,
                                             const ChunkLayout<Op>& chunk,
                                             typename Op::Storage* element, int64_t first_row) {
  using C = typename Op::C;
  using T = typename Op::Storage;
  const RowLanes group(lanes);
  const int column = group.Lane();
  // From an element of the first input to that of the second.
  const int stride = chunk.packs * Pack<T>::kSize + chunk.place[Op::kInputs - 1] - chunk.place[0];
#pragma unroll 1
  for (int row = group.RowOf(threadIdx.x % kWarpSize); row < kWarpSize;
       row += group.RowOf(kWarpSize)) {
    StagedRow<Op> part(args.op, element + chunk.place[0] + row * chunk.cols + column,
                       group.RowOf(chunk.cols - column + lanes - 1), stride, lanes);
    if constexpr (Op::kHides) {
      if (first_row + row < args.rows) part.Hide(first_row + row, args.cols, column);
    }
    auto found = RowStatistics<Op>::Empty();
    if constexpr (Op::kUsesMax) {
      found.max = Op::Reference(AllReduce<MaxReduction<C>>(group, part.MaxOfLane()));
    }
    part.AddTermsOfLane(found.max, found.sum);
    AllReduceSums(group, found.sum);
    const typename Op::Row constants = RowOf(args, first_row + row, found);
    if constexpr (Op::kStoresScalar) {
      if (column == 0) args.StoreScalar(first_row + row, constants.result);
    } else {
      part.FinishInPlace(constants);
    }
  }
}

template <typename Op>
__global__ void __launch_bounds__(kStagedTierThreads) WarpStagedSlicesTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps_per_block = blockDim.x / kWarpSize;
  const ChunkLayout<Op> chunk(args);
  Pack<T>* const pack = reinterpret_cast<Pack<T>*>(dynamic_smem) + warp * Op::kInputs * chunk.packs;
  const int64_t total = args.rows * args.cols;
  // Each pack of the result comes out of one pack of the chunk, into which the next can be fetched.
  const bool packs_match = Op::kStoresScalar || chunk.place[0] == chunk.offset;

  const int64_t step = static_cast<int64_t>(gridDim.x) * warps_per_block * chunk.size;
  int64_t begin = (static_cast<int64_t>(blockIdx.x) * warps_per_block + warp) * chunk.size;
  const auto fetch = [&](int64_t from, int p) {
    FetchPack(args, chunk, pack, from, total - from, p);
  };
  for (int p = lane; p < chunk.packs; p += kWarpSize) fetch(begin, p);
  for (; begin < total; begin += step) {
    // Load.
    WaitForCopies();
    __syncwarp();

    // Reduce, and finish in place.
    const int64_t first_row = begin / chunk.cols;
    if (args.lanes == 1) {
      ComputeChunk(1, args, chunk, pack->element, first_row);
    } else {
      ComputeChunk(args.lanes, args, chunk, pack->element, first_row);
    }

    // Store, and fetch the next chunk into the places that become free.
    __syncwarp();
    for (int p = lane; p < chunk.packs; p += kWarpSize) {
      if constexpr (!Op::kStoresScalar) StoreStagedPack(args, chunk, pack, begin, total - begin, p);
      if (packs_match) fetch(begin + step, p);
    }
    if (packs_match) continue;
    __syncwarp();
    for (int p = lane; p < chunk.packs; p += kWarpSize) fetch(begin + step, p);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_WARP_STAGED_SLICES_CUH_
