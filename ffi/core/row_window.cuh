// The window of aligned packs that covers a row of any length and alignment.
//
// Owns: RowWindow, and which elements of a loaded or stored pack belong to a row. Must not know:
// softmax, tiers.
//
// If cols is not a multiple of the pack, a row can begin anywhere within a 16-byte pack. Its window
// is the run of aligned packs that covers it. The first pack may begin with elements of the
// previous row (the head), and the last may end with elements of the next row (the tail). Loads
// read whole packs and mask foreign elements. Stores to the first and the last pack write the row's
// own elements only. If the result array begins `offset` elements into a pack, all base pointers
// lie that many elements before their arrays, so that the result's packs are aligned. Packs of
// inputs that are then unaligned are combined from two (LoadAcrossPacks).
#pragma once

#include <cstdint>

#include "core/pack.cuh"

namespace jaxkernels {

// Packs per 128-byte line of the L2 cache.
inline constexpr int kLinePacks = 8;

// The packs that cover one row. kAligned: every row of every array begins and ends at a pack
// boundary.
template <typename T, bool kAligned>
struct RowWindow {
  static constexpr int kSize = Pack<T>::kSize;

  int64_t first = 0;    // index of the first pack, counted from the base pointer
  int packs = 0;        // 0 for a row past the end
  int lead = 0;         // leading packs that are not the row's (see StartAtLine)
  int head = 0;         // elements of pack `lead` that belong to the previous row
  int tail = kSize;     // elements of the last pack before the next row begins
  int present = kSize;  // elements of the last pack that lie within the array

  RowWindow() = default;
  // Requires: row < rows.
  __device__ RowWindow(int64_t row, int64_t rows, int64_t cols, int offset) {
    if constexpr (kAligned) {
      packs = static_cast<int>(static_cast<uint64_t>(cols) / kSize);
      first = row * packs;
    } else {
      const int64_t begin = row * cols + offset;
      first = begin / kSize;
      const int64_t last = (begin + cols - 1) / kSize;
      packs = static_cast<int>(last - first) + 1;
      head = static_cast<int>(begin % kSize);
      tail = static_cast<int>(begin + cols - last * kSize);
      // This can concern several rows: rows shorter than a pack share the array's last pack.
      const int64_t left = rows * cols + offset - last * kSize;
      if (left < kSize) present = static_cast<int>(left);
    }
  }

  // Makes the window begin at a cache line, so that a warp's 512 bytes are 4 lines and not 5.
  __device__ void StartAtLine() {
    lead = static_cast<int>(first % kLinePacks);
    first -= lead;
    if (packs > 0) packs += lead;
  }

  // Restricts the window to packs [begin, begin + count), as far as they exist. `lead` becomes
  // negative if the row begins before this part.
  __device__ void TakePart(int begin, int count) {
    first += begin;
    lead -= begin;
    packs = max(packs - begin, 0);
    if (packs > count) packs = count, tail = present = kSize;
  }

  __device__ bool Has(int index) const {
    return static_cast<unsigned>(index - lead) < static_cast<unsigned>(packs - lead);
  }
  // Whether pack `index` may hold elements that are not the row's.
  __device__ bool IsPartial(int index) const {
    return !kAligned && (index == lead || index == packs - 1);
  }
  // Whether packs `from` to `to` lie strictly between the row's first and last pack, so that all
  // are whole.
  __device__ bool IsWithin(int from, int to) const { return from > lead && to < packs - 1; }
  // The row's elements of pack `index` are [Begin, End).
  __device__ int Begin(int index) const { return index == lead ? head : 0; }
  __device__ int End(int index) const { return index == packs - 1 ? tail : kSize; }
  // The array's elements of pack `index` are [0, Present).
  __device__ int Present(int index) const {
    return !kAligned && index == packs - 1 ? present : kSize;
  }
};

// Whether an input may be aligned differently from the result. Most kernels never get such an input
// (plan.cc): the gather code costs registers and time even if it does not run. It cost 3 to 12
// percent on rows of odd lengths (H200, 2026-11).
enum class Inputs { kOnPacks, kAnywhere };

// Loads pack `index` of a window. A last pack that the array does not fill is left to MaskPack, so
// that this is a plain predicated load and many can be in flight. (The aligned 16 bytes that hold
// the array's first and last element are read whole.)
template <Inputs kInputs, typename T, bool kAligned>
__device__ void LoadPack(Pack<T>& pack, const T* base, const RowWindow<T, kAligned>& window,
                         int index) {
  if (window.Present(index) != Pack<T>::kSize) return;
  if constexpr (kInputs == Inputs::kAnywhere && !kAligned) {
    const T* const from = base + (window.first + index) * Pack<T>::kSize;
    const T* const begin = from + window.Begin(index);
    const bool first_is_before_array =
        window.first + index == 0 && reinterpret_cast<uintptr_t>(from) / kPackBytes !=
                                         reinterpret_cast<uintptr_t>(begin) / kPackBytes;
    LoadAcrossPacks(&pack, from, !first_is_before_array);
  } else {
    CopyPack(&pack, base, window.first + index);
  }
}

// Replaces the elements of a loaded pack that do not belong to the row.
template <typename T, bool kAligned>
__device__ void MaskPack(Pack<T>& pack, const T* base, const RowWindow<T, kAligned>& window,
                         int index, T fill) {
  if (!window.IsPartial(index)) return;
  const int begin = window.Begin(index), end = window.End(index);
  if (window.Present(index) == Pack<T>::kSize) {
    KeepElements(pack, begin, end, fill);
  } else {
    GatherRarePack(&pack, base + (window.first + index) * Pack<T>::kSize, begin, end, fill);
  }
}

// Converts to the result type and stores the elements of pack `index` that belong to the row.
template <typename R, typename T, bool kAligned>
__device__ void StorePack(R* base, const RowWindow<T, kAligned>& window, int index,
                          const ComputeType<T> (&value)[Pack<T>::kSize]) {
  using Results = Pack<R, Pack<T>::kSize>;
  Results pack;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; j += 2) Narrow2(&value[j], &pack.element[j]);
  Results* target = reinterpret_cast<Results*>(base) + window.first + index;
  if (!window.IsPartial(index)) {
    *target = pack;
    return;
  }
  const int begin = window.Begin(index), end = window.End(index);
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    if (j >= begin && j < end) target->element[j] = pack.element[j];
  }
}

}  // namespace jaxkernels
