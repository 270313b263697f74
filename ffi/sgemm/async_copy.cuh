// Copies from global to shared memory that run below the arithmetic, and how to wait for them.
//
// Owns: the PTX. Two engines: cp.async, issued by every thread for four bytes (compute capability
// 8.0), and the tensor memory accelerator, which one thread asks for a whole tile (9.0). Must not
// know: matrices.
#ifndef JAXKERNELS_SGEMM_ASYNC_COPY_CUH_
#define JAXKERNELS_SGEMM_ASYNC_COPY_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace jaxkernels {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four bytes, or four zero bytes where `valid` is false; `from` is not read then.
__device__ inline void CopyFloatAsync(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

__device__ inline void CommitAsyncGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the newest kPending groups of this thread have arrived.
template <int kPending>
__device__ inline void WaitForAsyncGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void WaitForAllAsync() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A barrier in shared memory that opens when the expected bytes have arrived.
class ByteBarrier {
 public:
  __device__ explicit ByteBarrier(const uint64_t* barrier) : address_(SharedAddress(barrier)) {}

  // By one thread, before FenceBarriers(); others may wait for it after a __syncthreads().
  __device__ void Init() const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_) : "memory");
  }

  // By one thread, once a phase: how many bytes the phase waits for.
  __device__ void Expect(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_),
                 "r"(bytes)
                 : "memory");
  }

  // Until the phase of this parity is complete (the first phase has parity 0).
  __device__ void Wait(uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "RETRY_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra RETRY_%=;\n"
        "}\n" ::"r"(address_),
        "r"(parity)
        : "memory");
  }

  // Copies the box of a tensor that begins at the coordinates; zero beyond the tensor's ends.
  __device__ void CopyBox(uint32_t to, const CUtensorMap& map, int x, int y, int z) const {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(address_)
        : "memory");
  }

 private:
  uint32_t address_;
};

__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_ASYNC_COPY_CUH_
