// Barriers in shared memory that count what arrives there: bytes (compute capability 9.0 and
// later), or warps.
//
// Owns: the PTX of them. Must not know: what the bytes are, or who sends them.
#ifndef JAXKERNELS_CORE_BYTE_BARRIER_CUH_
#define JAXKERNELS_CORE_BYTE_BARRIER_CUH_

#include <cstdint>

#include "core/shared_address.cuh"

namespace jaxkernels {

// Opens when the expected bytes have arrived; then it waits for the next ones.
class ByteBarrier {
 public:
  __device__ explicit ByteBarrier(const uint64_t* barrier) : address_(SharedAddress(barrier)) {}

  __device__ uint32_t Address() const { return address_; }

  // By one thread, before FenceBarriers(). Others may wait for it after a __syncthreads(), and
  // other blocks send to it after a barrier of the cluster.
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
        "@!done bra RETRY_%=;\n"
        "}\n" ::"r"(address_),
        "r"(parity)
        : "memory");
  }

  // The same for bytes that other blocks of the cluster have stored.
  __device__ void WaitForCluster(uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "RETRY_%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra RETRY_%=;\n"
        "}\n" ::"r"(address_),
        "r"(parity)
        : "memory");
  }

 private:
  uint32_t address_;
};

// Opens when a number of warps have arrived.
class WarpBarrier : public ByteBarrier {
 public:
  using ByteBarrier::ByteBarrier;

  __device__ void Init(int warps) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()), "r"(warps) : "memory");
  }
  // By one lane: what it has stored before in shared memory is seen by those that have waited.
  __device__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address()) : "memory");
  }
};

__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_BYTE_BARRIER_CUH_
