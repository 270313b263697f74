// PTX mbarriers in shared memory, which count arriving bytes or warps.
//
// Owns: their PTX. Must not know: what arrives, or who sends it.
#pragma once

#include <cstdint>

#include "core/shared_address.cuh"

namespace jaxkernels {

// A phase completes when everything that it expects has arrived; then the next phase begins.
class Mbarrier {
 public:
  __device__ uint32_t Address() const { return address_; }

  // Waits until the phase of this parity is complete (the first phase has parity 0).
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

  // Initialises the barrier for `arrivals` arrivals per phase. One thread calls it; others may wait
  // after a __syncthreads().
  __device__ void Init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_), "r"(arrivals)
                 : "memory");
  }

 private:
  uint32_t address_;
};

// Counts bytes of asynchronous copies. Compute capability 9.0 and later.
class ByteBarrier : public Mbarrier {
 public:
  __device__ explicit ByteBarrier(const uint64_t* barrier) : Mbarrier(barrier) {}

  // Call it before FenceBarriers(). Other blocks may send to the barrier after a barrier of the
  // cluster.
  __device__ void Init() const { Mbarrier::Init(1); }

  // Sets the number of bytes that a phase waits for. One thread calls it, once per phase.
  __device__ void Expect(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
  }

  // Waits for a phase whose bytes come from other blocks of the cluster.
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

class WarpBarrier : public Mbarrier {
 public:
  __device__ explicit WarpBarrier(const uint64_t* barrier) : Mbarrier(barrier) {}

  __device__ void Init(int warps) const { Mbarrier::Init(warps); }

  // Arrives for a warp; one lane calls it. Its stores to shared memory become visible to the
  // waiting threads. Stores of other lanes need a __syncwarp() before.
  __device__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address()) : "memory");
  }
};

// CopyBytes copies to shared memory; the bytes are counted at `barrier`.
__device__ inline void CopyBytes(uint32_t to, const char* from, int bytes,
                                 const ByteBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier.Address())
      : "memory");
}

// Makes initialised byte barriers visible to asynchronous copies and to other blocks.
__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace jaxkernels
