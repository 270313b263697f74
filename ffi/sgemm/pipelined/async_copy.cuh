// Asynchronous copies from global to shared memory, and waits for them.
//
// Owns: the PTX of two kinds of copies. Every thread issues cp.async for 4 or 16 bytes (compute
// capability 8.0). One thread asks the tensor memory accelerator (TMA) for a whole tile (9.0); TMA
// counts its bytes at a barrier. Must not know: matrices.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/mbarrier.cuh"

namespace jaxkernels {

// CopyFloatAsync copies four bytes. If `valid` is false it writes zeros and does not read `from`.
__device__ inline void CopyFloatAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

// CopyPackAsync does the same with 16 bytes and bypasses the L1 cache. Requires: 16-byte
// boundaries.
__device__ inline void CopyPackAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// CopySharedPackAsync uses the L1 cache, for data that the blocks of an SM share.
__device__ inline void CopySharedPackAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void CommitAsyncGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// WaitForAsyncGroups waits until at most kPending groups of this thread are in flight.
template <int kPending>
__device__ inline void WaitForAsyncGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void WaitForAllAsync() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// CopyBox copies the box of a tensor at the given coordinates, with zeros beyond the tensor. Its
// bytes are counted at `barrier`.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int x, int y, int z,
                               const Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier.Address())
      : "memory");
}

}  // namespace jaxkernels
