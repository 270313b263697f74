// The masks of packs, and zeros for hidden gradients. The mask of a row is one byte per element, 0
// or 1, and begins at any address.
//
// If mask and row begin at the same place within a pack, the mask of a pack is one aligned word.
// Any other is cut out of one to three words of 4 bytes. Bytes before a row may be read: they share
// a word with its first byte. No byte behind it is read, because an array may end there.
#pragma once

#include <cstdint>
#include <cstring>

#include "rows/cuda/row_args.cuh"
#include "rows/ops/cross_entropy.h"
#include "rows/register_rules.h"

namespace jaxkernels {

// The mask of a pack of kSize elements: one byte per element, 0 or 1.
template <int kSize>
struct alignas(4 * MaskWords(kSize)) MaskBytes {
  uint32_t word[MaskWords(kSize)] = {};
};

// The column behind the row, or behind the part of it that a view has.
template <typename Op, bool kAligned>
__device__ int EndOf(const RowView<Op, kAligned>& row) {
  return row.Column(row.packs - 1) + row.tail;
}

// Whether the masks of packs are aligned words.
template <typename Op, bool kAligned>
__device__ bool IsMaskOnPacks(const RowView<Op, kAligned>& row) {
  constexpr int kSize = Pack<typename Op::Storage>::kSize;
  const auto address = reinterpret_cast<uintptr_t>(row.seen.mask) - row.head;
  return kSize >= 4 && (kAligned || address % sizeof(typename Op::MaskWord) == 0);
}

// Requires: IsMaskOnPacks(row), and the pack does not extend over the end of the row.
template <typename Op, bool kAligned>
__device__ void LoadMaskWord(typename Op::MaskWord& bytes, const RowView<Op, kAligned>& row,
                             int index) {
  // Both are the same address; each takes the fewest registers in its kernels.
  const int base = kAligned ? index : 0;
  const auto* const from = row.seen.mask + row.Column(base);
  bytes = reinterpret_cast<const typename Op::MaskWord*>(from)[index - base];
}

// Collects `count` bytes of a row of a mask one by one; those outside of [0, end) are 0.
__device__ inline uint64_t GatherMask(const uint8_t* mask, int column, int count, int end) {
  uint64_t bytes = 0;
#pragma unroll 1
  for (int j = 0; j < count; ++j) {
    if (column + j < 0 || column + j >= end) continue;
    bytes |= uint64_t{mask[column + j]} << 8 * j;
  }
  return bytes;
}

// Loads the mask of a pack; a mask that is not aligned is cut out of the words around it. Returns
// false for a pack at the edge of the row, which needs LoadEdgeMask. `on_packs` is IsMaskOnPacks of
// the row.
template <typename Op, bool kAligned>
__device__ bool LoadInnerMask(typename Op::MaskWord& bytes, const RowView<Op, kAligned>& row,
                              int index, bool on_packs) {
  constexpr int kSize = Pack<typename Op::Storage>::kSize, kWords = MaskWords(kSize);
  const int column = row.Column(index);
  const uint8_t* const from = row.seen.mask + column;
  if (on_packs) {
    if (!kAligned && column + kSize > EndOf(row)) return false;
    LoadMaskWord<Op>(bytes, row, index);
    return true;
  }
  const int skipped = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
  const int begin = column - skipped, words = (skipped + kSize + 3) / 4;
  if (begin <= -4 || begin + 4 * words > EndOf(row)) return false;
  uint32_t word[kWords + 1];
#pragma unroll
  for (int i = 0; i <= kWords; ++i) {
    word[i] = i < words ? reinterpret_cast<const uint32_t*>(from - skipped)[i] : 0;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    bytes.word[i] = __funnelshift_r(word[i], word[i + 1], 8 * skipped);
  }
  return true;
}

// Loads the mask of a pack byte by byte.
template <typename Op, bool kAligned>
__device__ void LoadEdgeMask(typename Op::MaskWord& bytes, const RowView<Op, kAligned>& row,
                             int index) {
  const int kSize = Pack<typename Op::Storage>::kSize;
  const uint64_t all = GatherMask(row.seen.mask, row.Column(index), kSize, EndOf(row));
  memcpy(&bytes, &all, sizeof(bytes));
}

// Loads the mask of a pack. The bytes of elements outside of the row can have any value.
// Requires: the row has a mask.
template <typename Op, bool kAligned>
__device__ void LoadMask(typename Op::MaskWord& bytes, const RowView<Op, kAligned>& row,
                         int index) {
  if (!LoadInnerMask(bytes, row, index, IsMaskOnPacks(row))) LoadEdgeMask(bytes, row, index);
}

// Copies the mask of a pack to shared memory; asynchronously if it is aligned.
template <typename Op, bool kAligned>
__device__ void CopyMask(typename Op::MaskWord* to, const RowView<Op, kAligned>& row, int index) {
  constexpr int kSize = Pack<typename Op::Storage>::kSize;
  const bool is_whole = kAligned || row.Column(index) + kSize <= EndOf(row);
  if (IsMaskOnPacks(row) && is_whole) {
    CopyWordsAsync<sizeof(*to)>(to, row.seen.mask + row.Column(index));
  } else {
    typename Op::MaskWord bytes;
    LoadMask<Op>(bytes, row, index);
    *to = bytes;
  }
}

// Whether a constant of a row is not finite: then gradients of hidden logits may be NaN. `Finish`
// bounds the difference of a hidden logit by kLeastLogitExponent.
template <typename Row>
__device__ bool IsSpoiled(const Row& row) {
  auto zero = 0 * row.factor + 0 * row.constant;
  if constexpr (requires { row.slope; }) {
    zero += 0 * fma(row.slope, decltype(zero){kLeastLogitExponent}, row.factor);
  }
  if constexpr (requires { row.other; }) zero += 0 * row.other.result;
  return zero != 0;
}

// Overwrites the gradients of hidden logits of such a row, in the packs that this thread has
// stored: `first`, first + stride, ... below `end`.
template <typename Op, bool kAligned, typename Row>
__device__ void ClearHidden(const RowArgs<Op>& args, const RowView<Op, kAligned>& view,
                            const Row& row, int first, int end, int stride) {
  if constexpr (kMasksLogits<Op> && Op::kStoresElements) {
    using T = typename Op::Storage;
    constexpr int kSize = Pack<T>::kSize;
    if (!IsSpoiled(row)) return;
#pragma unroll 1
    for (int index = first; index < end; index += stride) {
#pragma unroll 1
      for (int j = 0; j < kSize; ++j) {
        const int column = view.Column(index) + j;
        if (column < 0 || column >= view.seen.end || view.seen.mask[column] != 0) continue;
        static_cast<T*>(args.out)[(view.first + index) * kSize + j] = static_cast<T>(0);
      }
    }
  }
}

}  // namespace jaxkernels
