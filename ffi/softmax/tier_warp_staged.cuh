// Tier `warp`, short rows that begin within a pack: a warp brings 32 of them into shared memory.
//
// Peeling the head and tail of a short row costs more than the row (H200, bfloat16, 33 columns:
// 0.40 of the copy rate). But 32 rows together, a chunk, are whole packs again, from the first to
// the last, or from `offset` elements into a pack to as many into another.
//
// Work split: a warp owns a chunk of 32 consecutive rows and walks the chunks grid-stride.
//   Lane l moves packs l, l + 32, ... of the chunk.
//   args.lanes neighbouring lanes compute a row: one where rows begin all over a pack, so that no
//   lane waits for another in a reduction; several where all begin at one place of a pack
//   (StagedRowLanes).
// Memory: one read and one write per element in 16-byte packs.
//   The asynchronous copies of the warp's next chunk start as soon as the packs of this one are
//   stored.
// Banks: rows are cols elements apart. With one lane a row at most two lanes meet in a bank, as
//   cols is no multiple of a pack; otherwise as many would as a power of two divides cols, and
//   several lanes side by side take a row.
// Requires: 32 * cols is a multiple of the pack (any cols); shared memory for kInputs chunks a
// warp,
//   each a pack larger where they begin within one.
#ifndef JAXKERNELS_SOFTMAX_TIER_WARP_STAGED_CUH_
#define JAXKERNELS_SOFTMAX_TIER_WARP_STAGED_CUH_

#include <type_traits>

#include "softmax/plan.h"
#include "softmax/row_groups.cuh"
#include "softmax/row_steps.cuh"

namespace jaxkernels {

// The places of the 32 rows of a chunk. kPlace: kOnPacks if they and their operands begin at a
// pack.
template <Inputs kPlace>
struct ChunkLayout {
  int cols, size, packs;  // elements of a row, and of all; packs of all
  int first;              // elements before the first row

  __device__ ChunkLayout(int64_t cols, int offset, int pack)
      : cols(static_cast<int>(cols)), size(kWarpSize * this->cols), first(offset) {
    packs = (size + Offset() + pack - 1) / pack;
  }
  __device__ int Offset() const { return kPlace == Inputs::kOnPacks ? 0 : first; }
};

// Elements [begin, end) of a pack.
struct ElementRange {
  int begin, end;
};

// Those elements of pack `index` of a chunk that are among its first `count`.
template <typename T, Inputs kPlace>
__device__ ElementRange ElementsOfChunk(const ChunkLayout<kPlace>& chunk, int index,
                                        int64_t count) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t end = count + chunk.Offset() - index * kSize;
  return {index == 0 ? chunk.Offset() : 0, static_cast<int>(end < 0       ? 0
                                                            : end < kSize ? end
                                                                          : kSize)};
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
template <Inputs kPlace, typename Op>
__device__ void FetchChunkPack(const RowArgs<Op>& args, const ChunkLayout<kPlace>& chunk,
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
    const bool on_pack = kPlace == Inputs::kOnPacks || IsPackAligned(from);
    if (is_whole && on_pack) {
      CopyPackAsync(target, reinterpret_cast<const Pack<T>*>(from));
    } else if (is_whole && kPlace == Inputs::kAnywhere) {
      CopyShiftedPackAsync(target, from);
    } else {
      CopyElements(target->element, from, range);
    }
  }
}

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
    const ColumnRange band = op_.rows.ColumnsOf(index, cols);
    const uint8_t* const mask = op_.rows.MaskOf(index, cols);
    for (int k = 0; k < count_; ++k, column += lanes_) {
      const bool in_band = column >= band.begin && column < band.end;
      if (in_band && (mask == nullptr || mask[column] != 0)) continue;
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
template <Inputs kPlace, typename Op>
__device__ __forceinline__ void ComputeChunk(int lanes, const RowArgs<Op>& args,
                                             const ChunkLayout<kPlace>& chunk,
                                             typename Op::Storage* element, int64_t first_row) {
  using C = typename Op::C;
  using T = typename Op::Storage;
  const FewLanesGroup<C, 1> group(lanes);
  const int column = group.Lane();
#pragma unroll 1
  for (int row = group.RowOf(threadIdx.x % kWarpSize); row < kWarpSize;
       row += group.RowOf(kWarpSize)) {
    StagedRow<Op> part(args.op, element + chunk.Offset() + row * chunk.cols + column,
                       group.RowOf(chunk.cols - column + lanes - 1), chunk.packs * Pack<T>::kSize,
                       lanes);
    if constexpr (Op::kHides) {
      if (first_row + row < args.rows) part.Hide(first_row + row, args.cols, column);
    }
    C max[1] = {Op::Fill()};
    if constexpr (Op::kUsesMax) {
      max[0] = part.MaxOfLane();
      group.template AllReduceRows<MaxReduction<C>>(max);
      max[0] = Op::Reference(max[0]);
    }
    C sum[1] = {part.SumOfLane(max[0])};
    group.template AllReduceRows<SumReduction<C>>(sum);
    part.FinishInPlace(typename Op::Row(max[0], sum[0]));
  }
}

template <typename Op, Inputs kPlace>
__global__ void __launch_bounds__(kStagedTierThreads) WarpStagedTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps_per_block = blockDim.x / kWarpSize;
  const ChunkLayout<kPlace> chunk(args.cols, args.offset, kSize);
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
    if (kPlace == Inputs::kOnPacks || args.lanes == 1) {
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

#endif  // JAXKERNELS_SOFTMAX_TIER_WARP_STAGED_CUH_
