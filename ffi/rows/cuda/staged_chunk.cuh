// A chunk: consecutive rows that a warp copies through shared memory together, in packs.
//
// Owns: where a chunk lies in each array, and its copies. Must not know: what is computed.
//
// The length of a chunk is a multiple of the pack, so that all chunks of an array have the same
// alignment. In shared memory a chunk keeps the alignment of its input, so all loads are
// asynchronous copies of 16 bytes. If the result is aligned differently, each of its packs is
// combined from two when it is stored.
#pragma once

#include "rows/cuda/row_args.cuh"

namespace jaxkernels {

// Elements [begin, end) of a pack.
struct ElementRange {
  int begin, end;
};

// Copies elements of a pack one by one.
template <typename T>
__device__ void CopyElements(T* to, const T* from, const ElementRange& range) {
#pragma unroll 1
  for (int j = range.begin; j < range.end; ++j) to[j] = from[j];
}

template <typename Op>
class StagedChunk {
 public:
  using T = typename Op::Storage;
  static constexpr int kSize = Pack<T>::kSize;

  const int rows, cols, size;  // rows of a chunk, elements per row, elements per chunk

  // `memory`: the block's dynamic shared memory; the chunks of its warps follow one another.
  __device__ StagedChunk(const RowArgs<Op>& args, unsigned char* memory)
      : rows(args.staged_rows),
        cols(static_cast<int>(args.cols)),
        size(rows * cols),
        args_(args),
        total_(args.rows * args.cols) {
    on_packs_ = args.offset == 0;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      const auto address = reinterpret_cast<uintptr_t>(args.in[i] + args.offset);
      place_[i] = static_cast<int>(address % kPackBytes / sizeof(T));
      on_packs_ &= place_[i] == 0;
    }
    packs_ = size / kSize + (on_packs_ ? 0 : 1);
    pack_ = reinterpret_cast<Pack<T>*>(memory) + threadIdx.x / kWarpSize * Op::kInputs * packs_;
  }

  // Element `index` of an input in shared memory; the result replaces the first input.
  __device__ T* Element(int input, int index) const {
    return pack_[input * packs_].element + place_[input] + index;
  }

  // Starts the copies of the chunk that begins at element `begin` of the arrays.
  // Requires: the last chunk has been stored.
  __device__ void Fetch(int64_t begin) const {
    if (!IsWithin(begin)) return FetchAtEnds(begin);
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      const auto* const from = reinterpret_cast<const Pack<T>*>(Source(i, begin));
#pragma unroll 4
      for (int p = Lane(); p < packs_; p += kWarpSize) {
        CopyPackAsync(&pack_[i * packs_ + p], from + p);
      }
    }
  }

  // Stores the result of the chunk that begins at element `begin`.
  __device__ void Store(int64_t begin) const {
    if (!on_packs_ || !IsWithin(begin)) return StoreParts(begin);
    auto* const to = reinterpret_cast<Pack<T>*>(static_cast<T*>(args_.out) + begin);
#pragma unroll 4
    for (int p = Lane(); p < packs_; p += kWarpSize) CopyPack(to + p, pack_->element, p);
  }

 private:
  __device__ static int Lane() { return threadIdx.x % kWarpSize; }

  // The address of the first pack that a chunk touches.
  __device__ const T* Source(int input, int64_t begin) const {
    return args_.in[input] + args_.offset - place_[input] + begin;
  }

  // Whether all packs of a chunk lie within the arrays. Unaligned chunks share their first and last
  // pack with neighbours.
  __device__ bool IsWithin(int64_t begin) const {
    return on_packs_ ? begin + size <= total_ : begin > 0 && begin + size + kSize <= total_;
  }

  // The elements of pack `index` that are among the first `count` of a chunk which begins at
  // element `place` of pack 0.
  __device__ static ElementRange ElementsOfPack(int place, int index, int count) {
    const int end = count + place - index * kSize;
    return {index == 0 ? place : 0, min(max(end, 0), kSize)};
  }

  // The number of array elements from `begin` on, at most a chunk and a pack.
  __device__ int CountFrom(int64_t begin) const {
    return static_cast<int>(min(total_ - begin, int64_t{size} + kSize));
  }

  __device__ void FetchAtEnds(int64_t begin) const {
    const int count = CountFrom(begin);
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      for (int p = Lane(); p < packs_; p += kWarpSize) {
        ElementRange range = ElementsOfPack(place_[i], p, count);
        if (begin > 0) range.begin = 0;  // they belong to the previous chunk
        Pack<T>* const to = &pack_[i * packs_ + p];
        const T* const from = Source(i, begin) + p * kSize;
        if (range.begin == 0 && range.end == kSize) {
          CopyPackAsync(to, reinterpret_cast<const Pack<T>*>(from));
        } else {
          CopyElements(to->element, from, range);
        }
      }
    }
  }

  // Stores a chunk that may share its first and last pack with neighbours.
  __device__ void StoreParts(int64_t begin) const {
    const int offset = args_.offset, count = min(size, CountFrom(begin));
    for (int p = Lane(); p < packs_; p += kWarpSize) {
      const ElementRange own = ElementsOfPack(offset, p, count);
      const T* const from = Element(0, p * kSize - offset);
      T* const to = static_cast<T*>(args_.out) + begin + p * kSize;
      if (own.begin > 0 || own.end < kSize) {
        CopyElements(to, from, own);
        continue;
      }
      Pack<T> pack;
      if (place_[0] == offset) {
        CopyPack(&pack, from, 0);
      } else {
        LoadAcrossPacks(&pack, from);
      }
      CopyPack(reinterpret_cast<Pack<T>*>(to), pack.element, 0);
    }
  }

  const RowArgs<Op>& args_;
  const int64_t total_;     // elements of an array
  int place_[Op::kInputs];  // element of a pack at which each input begins
  bool on_packs_;           // all arrays begin at a pack boundary
  int packs_;               // packs per chunk and input
  Pack<T>* pack_;
};

}  // namespace jaxkernels
