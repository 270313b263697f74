// 16-byte packs of a row, whatever the row's length and alignment.
//
// Owns: Pack, the window of packs that covers a row, and how packs move between global memory,
// shared memory and registers. Must not know: softmax, tiers.
//
// When cols is not a multiple of the pack, a row begins anywhere within a 16-byte pack. Its window
// is the run of aligned packs that covers it: the first pack may begin with elements of the
// previous row (the head) and the last may end with elements of the next one (the tail). Whole
// packs are loaded, foreign elements are masked, and of the first and last pack only the row's own
// elements are stored. Where the result itself begins within a pack, `offset` elements into it,
// base pointers are that many elements before their arrays, so that its packs are aligned, and its
// first pack begins before it. Inputs whose packs are not aligned then are gathered (LoadPack).
#ifndef JAXKERNELS_COMMON_PACK_CUH_
#define JAXKERNELS_COMMON_PACK_CUH_

#include <cstdint>
#include <cstring>

#include "common/numeric.cuh"
#include "common/shared_address.cuh"

namespace jaxkernels {

inline constexpr int kPackBytes = 16;

template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr int kSize = kPackBytes / sizeof(T);
  T element[kSize];
};

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
  // The row's elements of pack `index` are [Begin, End).
  __device__ int Begin(int index) const { return index == lead ? head : 0; }
  __device__ int End(int index) const { return index == packs - 1 ? tail : kSize; }
  // The array's elements of pack `index` are [0, Present).
  __device__ int Present(int index) const {
    return !kAligned && index == packs - 1 ? present : kSize;
  }
};

// What holds a pack in registers takes it as words, never as elements: the compiler would keep
// those of half types apart, in halves of registers, from the load on, and wait for every load to
// take it apart. H200, bfloat16, 4096 columns, mask, time over that of a copy (2026-11): 1.35, as
// words 1.10.
template <typename T>
__device__ void CopyPack(Pack<T>* to, const T* from, int64_t index) {
  *reinterpret_cast<uint4*>(to) = reinterpret_cast<const uint4*>(from)[index];
}

// Elements [begin, end) of a pack, one by one, and `other` in the place of the rest.
template <typename T>
__device__ void GatherPack(Pack<T>* to, const T* from, int begin, int end, T other) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    pack.element[j] = j >= begin && j < end ? from[j] : other;
  }
  CopyPack(to, pack.element, 0);
}

// The same for the first and the last pack of an array. For half types, of which a pack has eight,
// by a loop that is slow but short: unrolled for every pack that a thread holds, it took 2 to 7
// registers, and a tenth to a fifth of the time to compile the kernel.
template <typename T>
__device__ void GatherRarePack(Pack<T>* to, const T* from, int begin, int end, T other) {
  if constexpr (kIsHalf<T>) {
    uint64_t low = 0, high = 0;
#pragma unroll 1
    for (int j = 0; j < Pack<T>::kSize; ++j) {  // each moves the others one place down
      const T element = j >= begin && j < end ? from[j] : other;
      low = low >> 16 | high << 48;
      high = high >> 16 | uint64_t{reinterpret_cast<const uint16_t&>(element)} << 48;
    }
    const uint64_t words[2] = {low, high};
    memcpy(to, words, kPackBytes);
  } else {
    GatherPack(to, from, begin, end, other);
  }
}

// Four bytes, of which those from `begin` to before `end` are 1 and the others 0.
__device__ inline uint32_t BytesFromTo(int begin, int end) {
  constexpr uint32_t kOnes = 0x01010101u;
  const auto from = [](int first) {
    return __funnelshift_lc(0, kOnes, 8 * min(max(first, 0), 4));  // a shift by 32 leaves nothing
  };
  return from(begin) & ~from(end);
}

// One value in all elements of a pack, as words: see CopyPack.
template <typename T>
struct FilledWords {
  uint32_t word[4];

  __device__ explicit FilledWords(T value) {
#pragma unroll
    for (int i = 0; i < kPackBytes; i += sizeof(T)) {
      memcpy(reinterpret_cast<char*>(word) + i, &value, sizeof(T));
    }
  }
};

template <typename T>
__device__ void FillPack(Pack<T>& pack, T value) {
  const FilledWords<T> filled(value);
  memcpy(&pack, filled.word, kPackBytes);
}

// Keeps the elements whose byte of `keep` is 1 and replaces those whose byte is 0. Two instructions
// for each 4 bytes of the pack.
template <typename T, int kWords>
__device__ void SelectElements(Pack<T>& pack, const uint32_t (&keep)[kWords], T other) {
  static_assert(kWords == (Pack<T>::kSize + 3) / 4, "a byte for each element");
  const FilledWords<T> others(other);
  uint32_t (&word)[4] = reinterpret_cast<uint32_t (&)[4]>(pack);
  const uint32_t low = keep[0] * 255, high = keep[kWords - 1] * 255;  // bytes 0 and 255
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // The bytes of `low` and `high` that stand for the first and the second half of this word.
    const uint32_t first = i * 4 / sizeof(T), second = (i * 4 + 2) / sizeof(T);
    const uint32_t bits = __byte_perm(low, high, first * 0x11 + second * 0x1100);
    word[i] = (word[i] & bits) | (others.word[i] & ~bits);
  }
}

// Keeps elements [begin, end) and replaces the others.
template <typename T>
__device__ void KeepElements(Pack<T>& pack, int begin, int end, T other) {
  uint32_t keep[(Pack<T>::kSize + 3) / 4];
#pragma unroll
  for (int i = 0; i < (Pack<T>::kSize + 3) / 4; ++i) {
    keep[i] = BytesFromTo(begin - 4 * i, end - 4 * i);
  }
  SelectElements(pack, keep, other);
}

__device__ inline bool IsPackAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
}

// Whether the packs of an input may lie elsewhere than those of the result. Most kernels are given
// no such input (plan.h): to be able to gather costs registers and time even where nothing is
// gathered. H200, rows of odd lengths, with and without (2026-11): 3 to 12 percent.
enum class Inputs { kOnPacks, kAnywhere };

// Loads pack `index` of a window. The one pack that the array does not fill at its end is left to
// MaskPack, so that this is a plain predicated load and many can be in flight. (Before its first
// element the 16 bytes of that element are read, whosever they are.)
template <Inputs kInputs, typename T, bool kAligned>
__device__ void LoadPack(Pack<T>& pack, const T* base, const RowWindow<T, kAligned>& window,
                         int index) {
  if (kInputs == Inputs::kAnywhere && !kAligned && !IsPackAligned(base)) {
    const int begin = window.Begin(index), end = min(window.End(index), window.Present(index));
    GatherPack(&pack, base + (window.first + index) * Pack<T>::kSize, begin, end, T());
  } else if (window.Present(index) == Pack<T>::kSize) {
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

// Narrows to the storage type and stores those elements of pack `index` that belong to the row.
template <typename T, bool kAligned>
__device__ void StorePack(T* base, const RowWindow<T, kAligned>& window, int index,
                          const ComputeType<T> (&value)[Pack<T>::kSize]) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; j += 2) Narrow2(&value[j], &pack.element[j]);
  Pack<T>* target = reinterpret_cast<Pack<T>*>(base) + window.first + index;
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

// Starts an asynchronous copy of one pack from global to shared memory. Requires: the array has all
// of it. (The instruction can be told to read less, but to compute-sanitizer that is an access out
// of bounds.)
template <typename T>
__device__ void CopyPackAsync(Pack<T>* to, const Pack<T>* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}

// The same for 4 or 8 bytes.
template <int kBytes>
__device__ void CopyWordsAsync(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(SharedAddress(to)), "l"(from),
               "n"(kBytes)
               : "memory");
}

// Waits for this thread's own asynchronous copies; other threads still need a barrier to see them.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The largest element. Half types are compared two at a time, before they are widened.
template <typename T>
__device__ ComputeType<T> MaxOfPack(const Pack<T>& pack) {
  alignas(2 * sizeof(T)) T max[2];
  memcpy(max, pack.element, sizeof(max));
#pragma unroll
  for (int j = 2; j < Pack<T>::kSize; j += 2) Max2(max, &pack.element[j]);
  ComputeType<T> wide[2];
  Widen2(max, wide);
  return Max(wide[0], wide[1]);
}

// Makes the compiler forget what it has derived from a pack of a half type: the next reader widens
// it again (one instruction an element) instead of keeping the wide copy, twice as large, in
// registers across a reduction. (bfloat16 gradient of 1024 columns: 80 registers instead of 150.)
template <typename T>
__device__ void Forget(Pack<T>& pack) {
  if constexpr (kIsHalf<T>) {
    uint32_t (&word)[4] = reinterpret_cast<uint32_t (&)[4]>(pack);
    asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_COMMON_PACK_CUH_
