// Tier `warp`, short rows of arrays that begin within a pack: staged as in tier_warp_staged.cuh,
// where chunks are whole packs. Here a chunk begins `offset` elements into a pack, and inputs may
// begin elsewhere within a pack than the result.
//
// It is a kernel of its own, because what it can do more takes 5 to 20 percent where it is not
// needed (H200, 7 and 17 columns).
//
// Work split: as there, but `lanes` neighbouring lanes compute a row (StagedRowLanes).
//
// Memory: one read and one write per element, in packs. Inputs that are gathered come in words of 4
// or 8 bytes; half types that begin within a word come by element.
//
// Banks: rows are cols elements apart. Where cols is no multiple of a pack, one lane takes a row,
// and at most two lanes meet in a bank. Otherwise several lanes side by side take a row, a group of
// elements each, and up to four of a warp meet.
//
// Requires: 32 * cols is a multiple of the pack (any cols); shared memory for kInputs chunks a
// warp, each a pack larger where they begin within one.
#ifndef JAXKERNELS_SOFTMAX_TIER_WARP_STAGED_SLICES_CUH_
#define JAXKERNELS_SOFTMAX_TIER_WARP_STAGED_SLICES_CUH_

#include <type_traits>

#include "softmax/plan.h"
#include "softmax/row_groups.cuh"
#include "softmax/row_steps.cuh"

namespace jaxkernels {

// The places of the 32 rows of a chunk.
struct ChunkLayout {
  int cols, offset, size, packs;  // elements of a row, before the first row, of all; packs of all

  __device__ ChunkLayout(int64_t cols, int offset, int pack)
      : cols(static_cast<int>(cols)),
        offset(offset),
        size(kWarpSize * this->cols),
        packs((size + offset + pack - 1) / pack) {}
};

// Elements [begin, end) of a pack.
struct ElementRange {
  int begin, end;
};

// Those elements of pack `index` of a chunk that are among its first `count`.
template <typename T>
__device__ ElementRange ElementsOfChunk(const ChunkLayout& chunk, int index, int64_t count) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t end = count + chunk.offset - index * kSize;
  return {index == 0 ? chunk.offset : 0, static_cast<int>(end < 0 ? 0 : end < kSize ? end : kSize)};
}

// Copies elements of a pack one by one.
template <typename T>
__device__ void CopyElements(T* to, const T* from, const ElementRange& range) {
  for (int j = range.begin; j < range.end; ++j) to[j] = from[j];
}

// Starts to copy a pack from anywhere: asynchronously in words of 4 or 8 bytes, but for half types
// that begin within a word.
template <typename T>
__device__ void CopyShiftedPackAsync(Pack<T>* to, const T* from) {
  constexpr int kWord = sizeof(T) < 4 ? 4 : sizeof(T);
  if (reinterpret_cast<uintptr_t>(from) % kWord != 0) {
    GatherPack(to, from, 0, Pack<T>::kSize, T());
    return;
  }
#pragma unroll
  for (int i = 0; i < kPackBytes; i += kWord) {
    CopyWordsAsync<kWord>(reinterpret_cast<char*>(to) + i, reinterpret_cast<const char*>(from) + i);
  }
}

// Starts to copy a chunk's pack `index` of every input; asynchronous where input and chunk have the
// same alignment. `left`: elements of the array from the first of the chunk on.
template <typename Op>
__device__ void FetchChunkPack(const RowArgs<Op>& args, const ChunkLayout& chunk,
                               Pack<typename Op::Storage>* to, int64_t begin, int64_t left,
                               int index) {
  using T = typename Op::Storage;
  constexpr int kSize = Pack<T>::kSize;
  // The chunk before this one has the elements before its first pack's, but for the array's first.
  ElementRange range = ElementsOfChunk<T>(chunk, index, left);
  if (begin > 0) range.begin = 0;
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
    Pack<T>* const target = &to[i * chunk.packs + index];
    const T* const from = args.in[i] + begin + index * kSize;
    const bool is_whole = range.begin == 0 && range.end == kSize;
    if (is_whole && IsPackAligned(from)) {
      CopyPackAsync(target, reinterpret_cast<const Pack<T>*>(from));
    } else if (is_whole) {
      CopyShiftedPackAsync(target, from);
    } else {
      CopyElements(target->element, from, range);
    }
  }
}

// Of a power of two.
__device__ inline int Log2OfPower(int power) { return __ffs(power) - 1; }

// The lanes that share a row, a power of two of them.
class RowLanes {
 public:
  __device__ explicit RowLanes(int lanes) : lanes_(lanes), log2_(Log2OfPower(lanes)) {}

  __device__ int Lane() const { return threadIdx.x & (lanes_ - 1); }
  // The number of lanes divides `threads`, rounded down.
  __device__ int RowOf(int threads) const { return threads >> log2_; }
  template <typename Reduction>
  __device__ typename Reduction::Value AllReduce(typename Reduction::Value value) const {
#pragma unroll 1
    for (int mask = lanes_ / 2; mask > 0; mask /= 2) {
      value = Reduction::Combine(value, ShuffleXor(value, mask));
    }
    return value;
  }

 private:
  const int lanes_, log2_;
};

// What a lane computes of a row: every `lanes`-th element, from its own on.
template <typename Op>
class StagedRow {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  static constexpr int kGroup = kStagedGroup;
  static constexpr bool kKeep = Op::kKeepsTerm && sizeof(T) == sizeof(C);

 public:
  // `first`: element of the first input; those of the others follow at distances of `stride`.
  __device__ StagedRow(const Op& op, T* first, int count, int stride, int lanes)
      : op_(op), first_(first), count_(count), stride_(stride), lanes_(lanes) {}

  // Replaces what row `index` of the array does not see. The lane's elements begin at `column`.
  __device__ void Hide(int64_t index, int64_t cols, int column) {
    const typename Op::View seen = op_.ViewOf(index, cols);
    for (int k = 0; k < count_; ++k, column += lanes_) {
      const bool in_band = column >= seen.begin && column < seen.end;
      if (in_band && (seen.mask == nullptr || seen.mask[column] != 0)) continue;
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) At(k, i) = static_cast<T>(Op::Fill());
    }
  }

  __device__ C MaxOfLane() {
    C max = Op::Fill();
    ForGroups([&](auto whole, int k) {
      C value[kGroup][Op::kInputs];
      Gather(whole, k, value);
      max = Max(max, MaxOf(op_, value));
    });
    return max;
  }

  __device__ C SumOfLane(C max) {
    C sum = 0;
    ForGroups([&](auto whole, int k) {
      C value[kGroup][Op::kInputs], term[kGroup];
      Gather(whole, k, value);
      sum += SumOf(op_, value, max, term);
      if constexpr (kKeep) Scatter(whole, k, term);
    });
    return sum;
  }

  __device__ void FinishInPlace(const typename Op::Row& constants) {
    ForGroups([&](auto whole, int k) {
      C value[kGroup][Op::kInputs], result[kGroup];
      Gather(whole, k, value);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        if constexpr (kKeep) {
          result[j] = op_.FinishTerm(value[j][0], constants);
        } else {
          result[j] = op_.Finish(value[j], constants);
        }
      }
      Scatter(whole, k, result);
    });
  }

 private:
  __device__ T& At(int k, int input) const { return first_[input * stride_ + k * lanes_]; }

  // Groups of elements; whole: the lane has all of them.
  template <typename Body>
  __device__ void ForGroups(Body body) const {
    int k = 0;
#pragma unroll 2
    for (; k + kGroup <= count_; k += kGroup) body(std::true_type(), k);
    if (k < count_) body(std::false_type(), k);
  }

  template <typename Whole>
  __device__ void Gather(Whole, int k, C (&value)[kGroup][Op::kInputs]) const {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        value[j][i] = Whole::value || k + j < count_ ? static_cast<C>(At(k + j, i)) : Op::Fill();
      }
    }
  }

  template <typename Whole>
  __device__ void Scatter(Whole, int k, const C (&value)[kGroup]) const {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (Whole::value || k + j < count_) At(k + j, 0) = static_cast<T>(value[j]);
    }
  }

  const Op& op_;
  T* first_;
  int count_, stride_, lanes_;
};

// Computes the rows of a chunk that lies in shared memory from `element` on, in place.
// `lanes`: that share a row; inlined, because one is much less code than any number.
// `first_row`: of the chunk, in the array.
template <typename Op>
__device__ __forceinline__ void ComputeChunk(int lanes, const RowArgs<Op>& args,
                                             const ChunkLayout& chunk,
                                             typename Op::Storage* element, int64_t first_row) {
  using C = typename Op::C;
  using T = typename Op::Storage;
  const RowLanes group(lanes);
  const int column = group.Lane();
#pragma unroll 1
  for (int row = group.RowOf(threadIdx.x % kWarpSize); row < kWarpSize;
       row += group.RowOf(kWarpSize)) {
    StagedRow<Op> part(args.op, element + chunk.offset + row * chunk.cols + column,
                       group.RowOf(chunk.cols - column + lanes - 1), chunk.packs * Pack<T>::kSize,
                       lanes);
    if constexpr (Op::kHides) {
      if (first_row + row < args.rows) part.Hide(first_row + row, args.cols, column);
    }
    C max = Op::Fill();
    if constexpr (Op::kUsesMax) {
      max = Op::Reference(group.template AllReduce<MaxReduction<C>>(part.MaxOfLane()));
    }
    const C sum = group.template AllReduce<SumReduction<C>>(part.SumOfLane(max));
    part.FinishInPlace(typename Op::Row(max, sum));
  }
}

template <typename Op>
__global__ void __launch_bounds__(kStagedTierThreads) WarpStagedSlicesTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps_per_block = blockDim.x / kWarpSize;
  const ChunkLayout chunk(args.cols, args.offset, kSize);
  Pack<T>* const pack = reinterpret_cast<Pack<T>*>(dynamic_smem) + warp * Op::kInputs * chunk.packs;
  const int64_t total = args.rows * args.cols;

  const int64_t step = static_cast<int64_t>(gridDim.x) * warps_per_block * chunk.size;
  int64_t begin = (static_cast<int64_t>(blockIdx.x) * warps_per_block + warp) * chunk.size;
  for (int p = lane; p < chunk.packs; p += kWarpSize) {
    FetchChunkPack(args, chunk, pack, begin, total - begin, p);
  }
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
      T* const target = args.out + begin + p * kSize;
      const ElementRange own =
          ElementsOfChunk<T>(chunk, p, min(int64_t{chunk.size}, total - begin));
      if (own.begin == 0 && own.end == kSize) {
        *reinterpret_cast<Pack<T>*>(target) = pack[p];
      } else {
        CopyElements(target, pack[p].element, own);
      }
      FetchChunkPack(args, chunk, pack, begin + step, total - begin - step, p);
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_TIER_WARP_STAGED_SLICES_CUH_
