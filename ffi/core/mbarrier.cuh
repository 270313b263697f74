// PTX mbarriers in shared memory, which count arriving bytes or warps.
//
// Owns: their PTX. Must not know: what arrives, or who sends it.
#pragma once

#include <cstdint>

#include "core/shared_address.cuh"

namespace jaxkernels {

// A phase completes when everything that it expects has arrived; then the next phase begins.
// Compute capability 9.0 and later.
class Mbarrier {
 public:
  __device__ explicit Mbarrier(const uint64_t* barrier) : address_(SharedAddress(barrier)) {}

  __device__ uint32_t Address() const { return address_; }

  // Initialises a barrier that counts bytes, or `warps` warps. One thread calls it; others may wait
  // after a __syncthreads(). A barrier of bytes also needs FenceBarriers(), and other blocks may
  // send bytes only after a barrier of the cluster.
  __device__ void Init(int warps = 1) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_), "r"(warps) : "memory");
  }

  // Waits until the phase of this parity is complete (the first phase has parity 0).
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

  // Waits for a phase whose bytes come from other blocks of the cluster.
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

  // Sets the number of bytes that a phase waits for. One thread calls it, once per phase.
  __device__ void Expect(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_),
                 "r"(bytes)
                 : "memory");
  }

  // Arrives for a warp; one lane calls it. Its stores to shared memory become visible to the
  // waiting threads. Stores of other lanes need a __syncwarp() before.
  __device__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_) : "memory");
  }

 private:
  uint32_t address_;
};

// CopyBytes copies to shared memory; the bytes are counted at `barrier`.
__device__ inline void CopyBytes(uint32_t to, const char* from, int bytes,
                                 const Mbarrier& barrier) {
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
