// The window of packs that covers a row, whatever the row's length and alignment.
//
// Owns: RowWindow, and which elements of a pack are a row's when it is loaded and stored. Must not
// know: softmax, tiers.
//
// When cols is not a multiple of the pack, a row begins anywhere within a 16-byte pack. Its window
// is the run of aligned packs that covers it: the first pack may begin with elements of the
// previous row (the head) and the last may end with elements of the next one (the tail). Whole
// packs are loaded, foreign elements are masked, and of the first and last pack only the row's own
// elements are stored. Where the result itself begins within a pack, `offset` elements into it,
// base pointers are that many elements before their arrays, so that its packs are aligned, and its
// first pack begins before it. Packs of inputs that are not aligned then are put together out of
// two (LoadAcrossPacks).
#ifndef JAXKERNELS_CORE_ROW_WINDOW_CUH_
#define JAXKERNELS_CORE_ROW_WINDOW_CUH_

#include <cstdint>

#include "core/pack.cuh"

namespace jaxkernels {

// Packs of a 128-byte line of the L2 cache.
inline constexpr int kLinePacks = 8;

// The packs that cover one row. kAligned: every row of every array begins at a pack boundary, so
// that every pack is whole.
template <typename T, bool kAligned>
struct RowWindow {
  static constexpr int kSize = Pack<T>::kSize;

  int64_t first = 0;    // index of the first pack, counted from the base pointer
  int packs = 0;        // none for a row past the end
  int lead = 0;         // packs at the front that are not the row's (see StartAtLine)
  int head = 0;         // elements of pack `lead` that belong to the previous row
  int tail = kSize;     // elements of the last pack before the next row begins
  int present = kSize;  // elements of the last pack that the array has: all, but at its end

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
      // Not of the last row alone: rows shorter than a pack share the array's last pack.
      const int64_t left = rows * cols + offset - last * kSize;
      if (left < kSize) present = static_cast<int>(left);
    }
  }

  // Lets the window begin at a cache line, so that a warp's 512 bytes are 4 lines and not 5.
  __device__ void StartAtLine() {
    lead = static_cast<int>(first % kLinePacks);
    first -= lead;
    if (packs > 0) packs += lead;
  }

  // Keeps `count` packs from `begin` on, or as many as there are. The others count as lead, which
  // is negative where there are such packs before this part.
  __device__ void TakePart(int begin, int count) {
    first += begin;
    lead -= begin;
    packs = max(packs - begin, 0);
    if (packs > count) packs = count, tail = present = kSize;
  }

  __device__ bool Has(int index) const {
    return static_cast<unsigned>(index - lead) < static_cast<unsigned>(packs - lead);
  }
  // Whether pack `index` holds elements that are not the row's.
  __device__ bool IsPartial(int index) const {
    return !kAligned && (index == lead || index == packs - 1);
  }
  // Whether packs `from` to `to` lie between the first and the last of the row, so that all are
  // whole.
  __device__ bool IsWithin(int from, int to) const { return from > lead && to < packs - 1; }
  // The row's elements of pack `index` are [Begin, End).
  __device__ int Begin(int index) const { return index == lead ? head : 0; }
  __device__ int End(int index) const { return index == packs - 1 ? tail : kSize; }
  // The array's elements of pack `index` are [0, Present).
  __device__ int Present(int index) const {
    return !kAligned && index == packs - 1 ? present : kSize;
  }
};

// Whether the packs of an input may lie elsewhere than those of the result. Most kernels are given
// no such input (plan.cc): to be able to gather costs registers and time even where nothing is
// gathered. H200, rows of odd lengths, with and without (2026-11): 3 to 12 percent.
enum class Inputs { kOnPacks, kAnywhere };

// Loads pack `index` of a window. The one pack that the array does not fill at its end is left to
// MaskPack, so that this is a plain predicated load and many can be in flight. (Before its first
// element, and after its last, the 16 bytes of that element are read, whosever they are.)
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

// Narrows to the type of the results and stores those elements of pack `index` that belong to the
// row.
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

#endif  // JAXKERNELS_CORE_ROW_WINDOW_CUH_
