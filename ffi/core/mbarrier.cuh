// Barriers in shared memory that count what arrives there (PTX's mbarrier): bytes, or warps.
//
// Owns: the PTX of them. Must not know: what arrives, or who sends it.
#ifndef JAXKERNELS_CORE_MBARRIER_CUH_
#define JAXKERNELS_CORE_MBARRIER_CUH_

#include <cstdint>

#include "core/shared_address.cuh"

namespace jaxkernels {

// Opens when all that a phase waits for has arrived; then it waits for the next phase's.
class Mbarrier {
 public:
  __device__ uint32_t Address() const { return address_; }

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

 protected:
  __device__ explicit Mbarrier(const uint64_t* barrier) : address_(SharedAddress(barrier)) {}

  // Of so many arrivals a phase. By one thread; others may wait after a __syncthreads().
  __device__ void Init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_), "r"(arrivals)
                 : "memory");
  }

 private:
  uint32_t address_;
};

// Counts bytes that the hardware moves. Compute capability 9.0 and later.
class ByteBarrier : public Mbarrier {
 public:
  __device__ explicit ByteBarrier(const uint64_t* barrier) : Mbarrier(barrier) {}

  // Before FenceBarriers(). Other blocks may send to it after a barrier of the cluster.
  __device__ void Init() const { Mbarrier::Init(1); }

  // By one thread, once a phase: how many bytes the phase waits for.
  __device__ void Expect(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
  }

  // Waits for bytes that other blocks of the cluster have stored.
  __device__ void WaitForCluster(uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "RETRY_%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra RETRY_%=;\n"
        "}\n" ::"r"(Address()),
        "r"(parity)
        : "memory");
  }
};

// Counts warps.
class WarpBarrier : public Mbarrier {
 public:
  __device__ explicit WarpBarrier(const uint64_t* barrier) : Mbarrier(barrier) {}

  __device__ void Init(int warps) const { Mbarrier::Init(warps); }

  // By one lane: what it has stored in shared memory is seen by those that have waited. What other
  // lanes have stored needs a __syncwarp() before.
  __device__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address()) : "memory");
  }
};

// Makes byte barriers that were begun seen by the hardware that moves bytes, and by other blocks.
__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_MBARRIER_CUH_
