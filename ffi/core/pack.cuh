// Packs of kPackBytes (dtype.h), the unit of vectorized access.
//
// Owns: Pack, and its loads, stores and copies between global memory, shared memory and registers,
// as words or by element. Must not know: rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/numeric.cuh"
#include "core/shared_address.cuh"

namespace jaxkernels {

// kElements: fills kPackBytes by default; packs of narrower results have the inputs' number of
// elements.
template <typename T, int kElements = kPackBytes / sizeof(T)>
struct alignas(kElements * sizeof(T)) Pack {
  static constexpr int kSize = kElements;
  T element[kSize];
};

// Copies one pack as words. Code that holds packs in registers must never copy them by element: the
// compiler then unpacks half types into separate registers right after each load, and waits for
// that load.
// H200 bf16 4096 cols, mask, time over that of a copy (2026-11): elements 1.35, words 1.10
template <typename T>
__device__ void CopyPack(Pack<T>* to, const T* from, int64_t index) {
  *reinterpret_cast<uint4*>(to) = reinterpret_cast<const uint4*>(from)[index];
}

// As CopyPack, from global memory, with a hint to evict these elements first.
template <typename T>
__device__ void StreamPack(Pack<T>* to, const T* from, int64_t index) {
  *reinterpret_cast<uint4*>(to) = __ldcs(reinterpret_cast<const uint4*>(from) + index);
}

// Loads elements [begin, end) of a pack one by one, and sets the others to `other`.
template <typename T>
__device__ void GatherPack(Pack<T>* to, const T* from, int begin, int end, T other) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    pack.element[j] = j >= begin && j < end ? from[j] : other;
  }
  CopyPack(to, pack.element, 0);
}

// As GatherPack, for the first and the last pack of an array. Half types, with eight elements per
// pack, use a slow but short loop. Unrolled for every pack of a thread, it cost 2 to 7 registers,
// and a tenth to a fifth of the kernel's compile time.
template <typename T>
__device__ void GatherRarePack(Pack<T>* to, const T* from, int begin, int end, T other) {
  if constexpr (kIsHalf<T>) {
    uint64_t low = 0, high = 0;
#pragma unroll 1
    for (int j = 0; j < Pack<T>::kSize; ++j) {  // shifts the earlier elements down by one
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

// A pack with one value in all elements, as words (see CopyPack).
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

// Replaces the elements whose byte in `low` (the first four) or `high` has a highest bit of 0.
template <typename T>
__device__ void SelectByHighBits(Pack<T>& pack, uint32_t low, uint32_t high, T other) {
  const FilledWords<T> others(other);
  uint32_t (&word)[4] = reinterpret_cast<uint32_t (&)[4]>(pack);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Indices of the bytes of `low` and `high` for the two halves of this word. With 8 added to an
    // index, prmt repeats the highest bit of the byte.
    const uint32_t first = i * 4 / sizeof(T), second = (i * 4 + 2) / sizeof(T);
    uint32_t bits;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(bits)
        : "r"(low), "r"(high), "r"(0x8888 + first * 0x11 + second * 0x1100));
    word[i] = (word[i] & bits) | (others.word[i] & ~bits);
  }
}

// Replaces the elements whose byte in `keep` is 0 by `other`, and keeps those whose byte is 1.
// Takes two instructions per 4 bytes of the pack.
template <typename T, int kWords>
__device__ void SelectElements(Pack<T>& pack, const uint32_t (&keep)[kWords], T other) {
  static_assert(kWords == (Pack<T>::kSize + 3) / 4, "a byte for each element");
  static_assert(kWords <= 2, "packs of 16 elements have more words than are read here");
  SelectByHighBits(pack, keep[0] * 128, keep[kWords - 1] * 128, other);
}

// Replaces the elements outside of [begin, end) by `other`.
template <typename T>
__device__ void KeepElements(Pack<T>& pack, int begin, int end, T other) {
  static_assert(Pack<T>::kSize <= 8, "a bit for each element");
  const auto from = [](int first) {  // bits first to 7 are 1, lower ones 0; higher ones are unused
    return __funnelshift_lc(0, 0xffu, max(first, 0));
  };
  const uint32_t bits = from(begin) & ~from(end);
  constexpr uint32_t kSpread = 0x10204080;  // moves bit k of four to the highest of byte k
  SelectByHighBits(pack, (bits & 15) * kSpread, (bits >> 4 & 15) * kSpread, other);
}

// Loads 16 bytes from an unaligned address, as two aligned packs. There are no branches; kernels
// with branches are equally fast:
// H200 f32 1024 cols, fraction of the aligned rate (2026-11): branches 0.47, none 0.47
// H200 f32 16384 cols, fraction of the aligned rate (2026-11): branches 0.49, none 0.49
// has_first: if false, the first of the two packs is not read.
template <typename T>
__device__ void LoadAcrossPacks(Pack<T>* to, const T* from, bool has_first = true) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto* const aligned = reinterpret_cast<const uint4*>(address & ~uintptr_t{kPackBytes - 1});
  uint4 first = {}, second = {};
  if (has_first) first = aligned[0];
  if (address % kPackBytes != 0) second = aligned[1];
  const uint32_t word[8] = {first.x,  first.y,  first.z,  first.w,
                            second.x, second.y, second.z, second.w};
  // Shifts the eight words by two words, by one word and by bytes until the wanted one comes first.
  const bool skips_two = address & 8, skips_one = address & 4;
  uint32_t after_two[6], wanted[5], result[4];
#pragma unroll
  for (int i = 0; i < 6; ++i) after_two[i] = skips_two ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) wanted[i] = skips_one ? after_two[i + 1] : after_two[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    result[i] = __funnelshift_r(wanted[i], wanted[i + 1], 8 * (address & 3));
  }
  memcpy(to, result, kPackBytes);
}

// Starts an asynchronous copy of one pack from global to shared memory.
// Requires: the whole pack lies within the array. (cp.async can read fewer bytes, but
// compute-sanitizer reports that as out of bounds.)
template <typename T>
__device__ void CopyPackAsync(Pack<T>* to, const Pack<T>* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}

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

// Whether an element is -inf. Half types are compared two at a time.
template <typename T>
__device__ bool HasMinusInfinity(const Pack<T>& pack) {
  alignas(2 * sizeof(T)) T min[2];
  memcpy(min, pack.element, sizeof(min));
#pragma unroll
  for (int j = 2; j < Pack<T>::kSize; j += 2) Min2(min, &pack.element[j]);
  if constexpr (kIsHalf<T>) {
    const T lowest = static_cast<T>(-kInfinity<float>);
    return !__hbne2(reinterpret_cast<const Half2Of<T>&>(min), Half2Of<T>{lowest, lowest});
  } else {
    return min[0] == -kInfinity<T> || min[1] == -kInfinity<T>;
  }
}

// Launders a pack of a half type through an empty asm statement. The compiler then widens it again
// at its next use (one instruction per element), and does not keep the float32 copy, twice as
// large, in registers across a reduction. (bfloat16 gradient of 1024 columns: 80 registers instead
// of 150.)
template <typename T>
__device__ void Forget(Pack<T>& pack) {
  if constexpr (kIsHalf<T>) {
    uint32_t (&word)[4] = reinterpret_cast<uint32_t (&)[4]>(pack);
    asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
  }
}

}  // namespace jaxkernels
