// Packs of kPackBytes (dtype.h): what one access moves.
//
// Owns: Pack, and how packs move between global memory, shared memory and registers, as words and
// element by element. Must not know: rows.
#ifndef JAXKERNELS_CORE_PACK_CUH_
#define JAXKERNELS_CORE_PACK_CUH_

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/numeric.cuh"
#include "core/shared_address.cuh"

namespace jaxkernels {

// kElements: another number than fills kPackBytes where as many narrower elements are stored.
template <typename T, int kElements = kPackBytes / sizeof(T)>
struct alignas(kElements * sizeof(T)) Pack {
  static constexpr int kSize = kElements;
  T element[kSize];
};

// What holds a pack in registers takes it as words, never as elements: the compiler would keep
// those of half types apart, in halves of registers, from the load on, and wait for every load to
// take it apart.
// H200 bf16 4096 cols, mask, time over that of a copy (2026-11): elements 1.35, words 1.10
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

// The 16 bytes at an address, out of the pack that it lies in and the next. Without branches, so
// that many can be in flight.
// H200 f32 1024 cols, fraction of the aligned rate (2026-11): branches 0.47, none 0.47
// H200 f32 16384 cols, fraction of the aligned rate (2026-11): branches 0.49, none 0.49
// has_first: false leaves the pack that it lies in unread.
template <typename T>
__device__ void LoadAcrossPacks(Pack<T>* to, const T* from, bool has_first = true) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto* const aligned = reinterpret_cast<const uint4*>(address & ~uintptr_t{kPackBytes - 1});
  uint4 first = {}, second = {};
  if (has_first) first = aligned[0];
  if (address % kPackBytes != 0) second = aligned[1];
  const uint32_t word[8] = {first.x,  first.y,  first.z,  first.w,
                            second.x, second.y, second.z, second.w};
  // The words from the first wanted one on: past two, past one more, and past some of its bytes.
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

#endif  // JAXKERNELS_CORE_PACK_CUH_
