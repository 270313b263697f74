// The stages of the product in shared memory: who may fill or read one, and how it is filled.
//
// Owns: their barriers, the PTX of copies, and how registers move between warpgroups. Must not
// know: what is multiplied.
//
// Clusters that share the copies of B (`.multicast::cluster`) were as fast, within 3 %: at the
// power limit of an H200 nothing else decides.
#ifndef JAXKERNELS_SGEMM_TENSOR_STAGES_CUH_
#define JAXKERNELS_SGEMM_TENSOR_STAGES_CUH_

#include <cstdint>

#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// Copies to shared memory; the bytes arrive at `barrier`.
__device__ inline void CopyBytes(uint32_t to, const char* from, int bytes,
                                 const ByteBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier.Address())
      : "memory");
}

// A place in the ring of stages, and how often the ring has been around.
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

// A stage is full when its bytes have arrived, and empty when all warps that multiply have released
// it.
class StageRing {
 public:
  // `stages` begins at a multiple of 1024.
  __device__ StageRing(const StageBarriers& barriers, uint32_t stages)
      : barriers_(barriers), stages_(stages) {}

  // By one thread, before a __syncthreads().
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
  // By all lanes of a warp that has read a stage.
  __device__ void Release(int stage) const {
    if (threadIdx.x % 32 == 0) WarpBarrier(&barriers_.empty[stage]).Arrive();
  }

  // By the one thread that fills stages.
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

// Fewer or more registers for the threads of this warpgroup.
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
