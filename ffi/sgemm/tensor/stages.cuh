// The stages of the product in shared memory: the ring, its barriers, and its copies.
//
// Owns: the barriers, the PTX of copies, and the transfer of registers between warpgroups. Must not
// know: what is multiplied.
//
// Clusters that share the copies of B (`.multicast::cluster`) were equally fast, within 3 %: the
// power limit of an H200 decides.
#ifndef JAXKERNELS_SGEMM_TENSOR_STAGES_CUH_
#define JAXKERNELS_SGEMM_TENSOR_STAGES_CUH_

#include <cstdint>

#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// CopyBytes copies to shared memory; the bytes are counted at `barrier`.
__device__ inline void CopyBytes(uint32_t to, const char* from, int bytes,
                                 const ByteBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier.Address())
      : "memory");
}

// StageCursor is a position in the ring of stages, and the parity of the round.
struct StageCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage == kTensorStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct StageBarriers {
  uint64_t full[kTensorStages], empty[kTensorStages];
};

// StageRing: a stage is full when its bytes have arrived, and empty when all multiplying warps have
// released it.
class StageRing {
 public:
  // `stages` starts at a 1024-byte boundary.
  __device__ StageRing(const StageBarriers& barriers, uint32_t stages)
      : barriers_(barriers), stages_(stages) {}

  // Init is called by one thread, before a __syncthreads().
  __device__ void Init() const {
    for (int i = 0; i < kTensorStages; ++i) {
      ByteBarrier(&barriers_.full[i]).Init();
      WarpBarrier(&barriers_.empty[i]).Init(kWarpsOfTensorTile);
    }
    FenceBarriers();
  }

  __device__ uint32_t AddressA(int stage) const { return stages_ + stage * kTensorStageBytes; }
  __device__ uint32_t AddressB(int stage) const { return AddressA(stage) + kTensorImageBytes; }

  __device__ void WaitFull(const StageCursor& cursor) const {
    ByteBarrier(&barriers_.full[cursor.stage]).Wait(cursor.parity);
  }
  // Release is called by all lanes of a warp that has read a stage.
  __device__ void Release(int stage) const {
    if (threadIdx.x % 32 == 0) WarpBarrier(&barriers_.empty[stage]).Arrive();
  }

  // WaitEmpty and Fill are called by the one thread that fills stages.
  __device__ void WaitEmpty(const StageCursor& cursor) const {
    WarpBarrier(&barriers_.empty[cursor.stage]).Wait(cursor.parity ^ 1);
  }
  __device__ void Fill(int stage, const char* image_a, const char* image_b) const {
    const ByteBarrier full(&barriers_.full[stage]);
    full.Expect(kTensorStageBytes);
    CopyBytes(AddressA(stage), image_a, kTensorImageBytes, full);
    CopyBytes(AddressB(stage), image_b, kTensorImageBytes, full);
  }

 private:
  const StageBarriers& barriers_;
  uint32_t stages_;
};

// GiveRegisters lowers the registers per thread of this warpgroup; TakeRegisters raises them.
template <int kRegisters>
__device__ inline void GiveRegisters() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_STAGES_CUH_
