// Copies from global to shared memory that run below the arithmetic, and how to wait for them.
//
// Owns: the PTX. Two ways: cp.async, issued by every thread for 4 or 16 bytes (compute capability
// 8.0), and the tensor memory accelerator, which one thread asks for a whole tile (9.0) and which
// counts its bytes at a barrier. Must not know: matrices.
#ifndef JAXKERNELS_SGEMM_PIPELINED_ASYNC_COPY_CUH_
#define JAXKERNELS_SGEMM_PIPELINED_ASYNC_COPY_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"

namespace jaxkernels {

// Four bytes, or four zero bytes where `valid` is false; `from` is not read then.
__device__ inline void CopyFloatAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

// The same of 16 bytes, where both places begin at multiples of that; past the L1 cache.
__device__ inline void CopyPackAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// The same by way of the L1 cache, for what the blocks of an SM share.
__device__ inline void CopySharedPackAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void CommitAsyncGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the newest kPending groups of this thread have arrived.
template <int kPending>
__device__ inline void WaitForAsyncGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void WaitForAllAsync() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Copies the box of a tensor that begins at the coordinates; zero beyond the tensor's ends. Its
// bytes arrive at `barrier`.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int x, int y, int z,
                               const ByteBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier.Address())
      : "memory");
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_PIPELINED_ASYNC_COPY_CUH_
