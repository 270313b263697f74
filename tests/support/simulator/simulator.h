// Runs CUDA kernels of ffi/attention on a CPU, thread by thread: fibers instead of threads,
// functions instead of PTX. The files of this directory's core/ replace those of ffi/core.
//
// Products are delayed until somebody waits for them, copies for up to three rounds over all
// threads. A copy over bytes that products still read ends the program.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#undef __shared__
#undef __global__
#undef __device__
#undef __grid_constant__
#undef __launch_bounds__
#define __shared__ thread_local
#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)

using std::isinf;
using std::isnan;
using std::max;
using std::min;

inline dim3 threadIdx, blockIdx, gridDim;

namespace simulator {

constexpr int kMaxThreads = 384, kStack = 1 << 18;

struct Barrier {
  int arrived = 0, generation = 0;
};

// A product of a warpgroup, as one thread sees it.
struct Product {
  float* sums;
  int columns;
  bool a_in_registers, keep;
  uint64_t a, b;
  uint32_t registers[4];
  bool ends_group = false;
};

struct Copy {
  char* to;
  const char* from;
  int bytes;
  const void* barrier;
};

inline int threads, running;
inline ucontext_t scheduler, fibers[kMaxThreads];
inline bool is_done[kMaxThreads];
inline Barrier warp_barriers[kMaxThreads / 32], block_barrier;
inline uint64_t exchanged[kMaxThreads];
inline std::vector<Product> products[kMaxThreads];
inline std::vector<Copy> copies;
inline std::function<void()> body;
inline std::unique_ptr<char[]> stacks(new char[std::size_t{kMaxThreads} * kStack]);

inline void Yield() { swapcontext(&fibers[running], &scheduler); }

inline void Synchronize(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) Yield();
}
inline void SynchronizeWarp() { Synchronize(warp_barriers[running / 32], 32); }

// Exchange returns the values of all lanes of the warp.
template <typename T>
std::vector<T> Exchange(T value) {
  std::memcpy(&exchanged[running], &value, sizeof(T));
  SynchronizeWarp();
  std::vector<T> all(32);
  for (int i = 0; i < 32; ++i) std::memcpy(&all[i], &exchanged[running / 32 * 32 + i], sizeof(T));
  SynchronizeWarp();
  return all;
}

struct Mbarrier {
  int arrivals = 0, remaining = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;

  void Update() {
    if (remaining > 0 || bytes > 0) return;
    remaining = arrivals;
    phase ^= 1;
  }
};
inline std::map<const void*, Mbarrier> mbarriers;

inline void FinishCopies() {
  for (const Copy& copy : copies) {
    std::memcpy(copy.to, copy.from, copy.bytes);
    Mbarrier& barrier = mbarriers[copy.barrier];
    barrier.bytes -= copy.bytes;
    barrier.Update();
  }
  copies.clear();
}

inline void Enter() {
  body();
  is_done[running] = true;
  Yield();
}

inline void RunBlock(int count) {
  threads = count;
  mbarriers.clear();
  for (int i = 0; i < count; ++i) {
    is_done[i] = false;
    products[i].clear();
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[std::size_t(i) * kStack];
    fibers[i].uc_stack.ss_size = kStack;
    fibers[i].uc_link = nullptr;
    makecontext(&fibers[i], Enter, 0);
  }
  for (int64_t round = 0;; ++round) {
    bool any = false;
    for (int i = 0; i < count; ++i) {
      if (is_done[i]) continue;
      any = true;
      running = i;
      threadIdx.x = i;
      swapcontext(&scheduler, &fibers[i]);
    }
    if (!any) return;
    if (round % 3 == 2) FinishCopies();
  }
}

}  // namespace simulator

inline void __syncthreads() {
  simulator::Synchronize(simulator::block_barrier, simulator::threads);
}
inline int __syncthreads_or(int value) {
  static int all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  all |= value;
  __syncthreads();
  return all;
}
inline void __syncwarp() { simulator::SynchronizeWarp(); }
template <typename T>
T __shfl_xor_sync(unsigned, T value, int lane) {
  return simulator::Exchange(value)[threadIdx.x % 32 ^ lane];
}
inline int __reduce_min_sync(unsigned, int value) {
  const auto all = simulator::Exchange(value);
  return *std::min_element(all.begin(), all.end());
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  const auto all = simulator::Exchange(value);
  return *std::max_element(all.begin(), all.end());
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }

namespace jaxkernels {
inline thread_local char smem[232448];
}
