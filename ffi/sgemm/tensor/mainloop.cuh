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
#ifndef JAXKERNELS_SGEMM_TENSOR_MAINLOOP_CUH_
#define JAXKERNELS_SGEMM_TENSOR_MAINLOOP_CUH_

#include <cstdint>

#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"
#include "sgemm/tensor/layout.h"
#include "sgemm/tensor/pair.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define JK_HAS_WGMMA 1
#else
#define JK_HAS_WGMMA 0
#endif

namespace jaxkernels {

// The warpgroup products (wgmma) of Hopper: float16 operands in shared memory, float32 sums in
// registers. Compiled for sm_90a only; elsewhere the functions are empty.
//
// A tile is K-major: lines of 64 float16 (128 bytes), one after the other. 16-byte chunk c of line
// r lies at place c ^ (r % 8) of the line (the 128-byte swizzle). A tile starts at a 1024-byte
// boundary.
//
// Element i of a thread's sums has row 16 * warp + lane / 4 + i / 2 % 2 * 8 and column i / 4 * 8 +
// lane % 4 * 2 + i % 2.

// DescribeTile describes a tile at this address of shared memory. Groups of 8 lines are 1024 bytes
// apart.
__device__ inline uint64_t DescribeTile(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroups = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroups | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}
// kDescriptorStep is the step of a descriptor from 16 k to the next 16.
inline constexpr uint64_t kDescriptorStep = 16 * 2 / 16;

// FenceProducts comes before the first product, and after other instructions wrote the sums.
__device__ inline void FenceProducts() {
#if JK_HAS_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void CommitProducts() {
#if JK_HAS_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// WaitForProducts waits until at most kPending groups of products are in flight.
template <int kPending>
__device__ inline void WaitForProducts() {
#if JK_HAS_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// LaunderRegisters tells the compiler that sums change here, so that it moves no use of them across
// a wait.
template <int kSums>
__device__ inline void LaunderRegisters(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define JK_SUMS_8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define JK_SUMS_64(d)                                                                     \
  JK_SUMS_8(d, 0), JK_SUMS_8(d, 8), JK_SUMS_8(d, 16), JK_SUMS_8(d, 24), JK_SUMS_8(d, 32), \
      JK_SUMS_8(d, 40), JK_SUMS_8(d, 48), JK_SUMS_8(d, 56)

// Multiply64x128 computes sums = (keep ? sums : 0) + A B of 64 x 128 x 16.
__device__ inline void Multiply64x128(float (&sums)[64], uint64_t a, uint64_t b, bool keep) {
#if JK_HAS_WGMMA
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
      ", %64, %65, keep, 1, 1, 0, 0;\n"
      "}\n"
      : JK_SUMS_64(sums)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)));
#endif
}

#undef JK_SUMS_64
#undef JK_SUMS_8

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
  __device__ uint32_t AddressB(int stage) const { return AddressA(stage) + kPackedTileBytes; }

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
  __device__ void Fill(int stage, const char* tile_a, const char* tile_b) const {
    const ByteBarrier full(&barriers_.full[stage]);
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
    Multiply64x128(main, a_high + at, b_high + at, i > 0);
  }
  CommitProducts();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint64_t at = i * kDescriptorStep;
    Multiply64x128(cross, a_high + at, b_low + at, true);
    Multiply64x128(cross, a_low + at, b_high + at, true);
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

#endif  // JAXKERNELS_SGEMM_TENSOR_MAINLOOP_CUH_
