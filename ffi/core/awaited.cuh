// Values in global memory that blocks of one grid wait for, until other blocks have stored them.
//
// Owns: how a value is told from none. Must not know: what the values are.
// A value is its own signal. So nobody waits for the stores before it, as a fence and a counter
// would.
#ifndef JAXKERNELS_CORE_AWAITED_CUH_
#define JAXKERNELS_CORE_AWAITED_CUH_

#include <cstdint>
#include <cstring>

#include "core/reduce.cuh"

namespace jaxkernels {

// Memory holds no value while its bytes are these, which it is filled with before the kernel.
inline constexpr int kAbsentByte = 0xff;
inline constexpr uint64_t kAbsentWord = ~uint64_t{0};

template <typename Value>
inline constexpr int kAwaitedWords = sizeof(Value) / sizeof(uint64_t);

// Requires: the numbers of a value are of four or eight bytes. A word of ones is NaN, and so is
// what is stored instead.
template <typename Value>
__device__ void StoreAwaited(Value* to, const Value& value) {
  static_assert(sizeof(Value) % sizeof(uint64_t) == 0, "it is stored in words of eight bytes");
  uint64_t word[kAwaitedWords<Value>];
  memcpy(word, &value, sizeof(Value));
#pragma unroll
  for (int i = 0; i < kAwaitedWords<Value>; ++i) {
    if (word[i] == kAbsentWord) word[i] >>= 1;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(reinterpret_cast<uint64_t*>(to) + i),
                 "l"(word[i])
                 : "memory");
  }
}

// Loads `count` values by a warp, kAtOnce of a lane side by side, and waits for them.
// Requires: who stores them runs at the same time (a cooperative launch).
template <int kAtOnce, typename Value>
__device__ void LoadAwaited(Value* to, const Value* from, int count) {
  constexpr int kWords = kAwaitedWords<Value>;
#pragma unroll 1
  for (int first = threadIdx.x % kWarpSize; first < count; first += kAtOnce * kWarpSize) {
    uint64_t word[kAtOnce][kWords];
    bool all_here;
    do {
      all_here = true;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int index = min(first + u * kWarpSize, count - 1);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                       : "=l"(word[u][i])
                       : "l"(reinterpret_cast<const uint64_t*>(from + index) + i)
                       : "memory");
        }
      }
#pragma unroll
      for (auto& of_value : word) {
#pragma unroll
        for (const uint64_t each : of_value) all_here = all_here && each != kAbsentWord;
      }
    } while (!all_here);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * kWarpSize < count) memcpy(&to[first + u * kWarpSize], word[u], sizeof(Value));
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_AWAITED_CUH_
