// The main loop: sums the products of split operands over k, from a ring of stages in shared
// memory.
//
// Owns: the ring, its barriers and copies, the products of a stage, their order, and the promotion
// of sums. Must not know: how the sums are used.
//
// A B = high high + (high low + low high) / 2^11; low low is below the precision of a pair. wgmma
// adds with a few extra bits and truncates. The sums of high high therefore start anew with every
// stage and are added in float32. The others are 2^-11 smaller and need not.
// H200, uniform [0, 1), 1024^3, relF (2026-11): anew every 64 of k 1.9e-7, every 128 4.7e-7;
// one chain of FFMA 4.3e-7
// H200, product alone, 4096^3, us (2026-11): anew every 64 of k 640, every 32 665, every 16 717
//
// Clusters that share the copies of B (`.multicast::cluster`) were equally fast, within 3 %: the
// power limit of an H200 decides.
#pragma once

#include <cstdint>

#include "core/mbarrier.cuh"
#include "core/wgmma.cuh"
#include "sgemm/tensor/layout.h"
#include "sgemm/tensor/pair.cuh"

namespace jaxkernels {

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
      Mbarrier(&barriers_.full[i]).Init();
      Mbarrier(&barriers_.empty[i]).Init(kWarpsOfTensorTile);
    }
    FenceBarriers();
  }

  __device__ uint32_t AddressA(int stage) const { return stages_ + stage * kTensorStageBytes; }
  __device__ uint32_t AddressB(int stage) const { return AddressA(stage) + kPackedTileBytes; }

  __device__ void WaitFull(const StageCursor& cursor) const {
    Mbarrier(&barriers_.full[cursor.stage]).Wait(cursor.parity);
  }
  // Release is called by all lanes of a warp that has read a stage.
  __device__ void Release(int stage) const {
    if (threadIdx.x % 32 == 0) Mbarrier(&barriers_.empty[stage]).Arrive();
  }

  // WaitEmpty and Fill are called by the one thread that fills stages.
  __device__ void WaitEmpty(const StageCursor& cursor) const {
    Mbarrier(&barriers_.empty[cursor.stage]).Wait(cursor.parity ^ 1);
  }
  __device__ void Fill(int stage, const char* tile_a, const char* tile_b) const {
    const Mbarrier full(&barriers_.full[stage]);
    full.Expect(kTensorStageBytes);
    CopyBytes(AddressA(stage), tile_a, kPackedTileBytes, full);
    CopyBytes(AddressB(stage), tile_b, kPackedTileBytes, full);
  }

 private:
  const StageBarriers& barriers_;
  uint32_t stages_;
};

// StartProducts starts the products of a stage: main = high high, and cross += the others, in a
// second group. `a` and `b` are the addresses of the warpgroup's 64 lines of A and of the 128 of B.
__device__ inline void StartProducts(float (&main)[64], float (&cross)[64], uint32_t a,
                                     uint32_t b) {
  const uint64_t a_high = DescribeTile(a), a_low = DescribeTile(a + kPackedHalfBytes);
  const uint64_t b_high = DescribeTile(b), b_low = DescribeTile(b + kPackedHalfBytes);
  constexpr int kCount = kTensorStepK / 16;
  FenceProducts();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint64_t at = i * kDescriptorStep;
    Multiply(main, a_high + at, b_high + at, i > 0);
  }
  CommitProducts();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint64_t at = i * kDescriptorStep;
    Multiply(cross, a_high + at, b_low + at, true);
    Multiply(cross, a_low + at, b_high + at, true);
  }
  CommitProducts();
}

// Promote computes sums += main. If compensated, main becomes the rounding error: exact if |sums|
// >= |main| (Dekker's fast two-sum), else rounded. The old sum lives until its error is known, so
// the new sum takes a free register, and then the old one's is free for the next. Sums thus move by
// one register in a step. The next step goes through them in the other order and moves them back.
// (In one order ptxas spills 152 bytes.) Results do not depend on the order.
template <bool kCompensated, bool kAscending>
__device__ inline void Promote(float (&sums)[64], float (&main)[64]) {
#pragma unroll
  for (int j = 0; j < 64; ++j) {
    const int i = kAscending ? j : 63 - j;
    const float sum = sums[i] + main[i];
    if constexpr (kCompensated) main[i] -= sum - sums[i];
    sums[i] = sum;
  }
}

// SumStage adds the products of a stage. The cross products run while sums are promoted, and those
// of the other warpgroup while this one waits for its own. Waiting less (the next stage's products
// before these are done) was not faster: 629 to 638 us instead of 610 at 4096^3 (H200, 2026-11).
template <bool kCompensated, bool kAscending>
__device__ inline void SumStage(float (&sums)[64], float (&main)[64], float (&cross)[64],
                                const StageRing& ring, StageCursor& cursor, int first_line) {
  ring.WaitFull(cursor);
  StartProducts(main, cross, ring.AddressA(cursor.stage) + first_line * kTensorLineBytes,
                ring.AddressB(cursor.stage));
  WaitForProducts<1>();
  LaunderRegisters(main);
  Promote<kCompensated, kAscending>(sums, main);
  WaitForProducts<0>();
  ring.Release(cursor.stage);
  cursor.Advance();
  if constexpr (kCompensated) {
    LaunderRegisters(cross);
#pragma unroll
    for (int i = 0; i < 64; ++i) cross[i] = fmaf(main[i], kLowScale, cross[i]);
  }
}

// SumTile sums 64 x 128 elements by a warpgroup, over `steps` stages from `cursor` on. `first_line`
// is its first of the 128 lines of A.
template <bool kCompensated>
__device__ inline void SumTile(float (&sums)[64], const StageRing& ring, StageCursor& cursor,
                               int steps, int first_line) {
  float main[64], cross[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) cross[i] = sums[i] = 0.0f;
  if constexpr (kCompensated) {
#pragma unroll 1
    for (int step = 0; step + 1 < steps; step += 2) {
      SumStage<true, true>(sums, main, cross, ring, cursor, first_line);
      SumStage<true, false>(sums, main, cross, ring, cursor, first_line);
    }
    if (steps % 2 == 1) SumStage<true, true>(sums, main, cross, ring, cursor, first_line);
  } else {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      SumStage<false, true>(sums, main, cross, ring, cursor, first_line);
    }
  }
  LaunderRegisters(cross);
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = fmaf(cross[i], 1.0f / kLowScale, sums[i]);
}

}  // namespace jaxkernels
