// The PTX of warpgroup products, and of the registers of warpgroups.
//
// Owns: descriptors of tiles in shared memory, the products, their fences. Must not know: what is
// multiplied.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define JK_HAS_WGMMA 1
#else
#define JK_HAS_WGMMA 0
#endif

namespace jaxkernels {

// The warpgroup products (wgmma) of Hopper: float16 operands in shared memory, float32 sums in
// registers. Only code for sm_90a calls them.
//
// A tile is lines of 64 float16 (128 bytes), one after the other. 16-byte chunk c of line r lies at
// place c ^ (r % 8) of the line (the 128-byte swizzle). A tile starts at a 1024-byte boundary. It
// is K-major if a line is 64 k of one row of A or one column of B. A tile of B is MN-major if a
// line is 64 columns of one k.
//
// Element i of a thread's sums has row 16 * warp + lane / 4 + i / 2 % 2 * 8 and column i / 4 * 8 +
// lane % 4 * 2 + i % 2.

// DescribeTile describes a tile at this address of shared memory. Groups of 8 lines are 1024 bytes
// apart.
__device__ inline uint64_t DescribeTile(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroups = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroups | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}
// The step of a descriptor from 16 k to the next 16: 32 bytes, or 16 lines if it is MN-major.
inline constexpr uint64_t kDescriptorStep = 16 * 2 / 16;
inline constexpr uint64_t kDescriptorStepMN = 16 * 128 / 16;

// FenceProducts comes before the first product, and after other instructions wrote the sums.
__device__ inline void FenceProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// WaitForProducts waits until at most kPending groups of products are in flight.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
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

// Multiply computes sums = (keep ? sums : 0) + A B of 64 x 128 x 16, or of 64 x 64 x 16 with 32
// sums.
__device__ inline void Multiply(float (&sums)[64], uint64_t a, uint64_t b, bool keep) {
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
}

__device__ inline void Multiply(float (&sums)[32], uint64_t a, uint64_t b, bool keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
      ", %32, %33, keep, 1, 1, 0, 0;\n"
      "}\n"
      : JK_SUMS_8(sums, 0), JK_SUMS_8(sums, 8), JK_SUMS_8(sums, 16), JK_SUMS_8(sums, 24)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)));
}

// As above with A in registers: `a` has 16 columns of A in the layout of sums, two elements per
// register. B is MN-major.
__device__ inline void Multiply(float (&sums)[32], const uint32_t (&a)[4], uint64_t b, bool keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
      ", {%32, %33, %34, %35}, %36, keep, 1, 1, 1;\n"
      "}\n"
      : JK_SUMS_8(sums, 0), JK_SUMS_8(sums, 8), JK_SUMS_8(sums, 16), JK_SUMS_8(sums, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)));
}

#undef JK_SUMS_64
#undef JK_SUMS_8

// GiveRegisters lowers the registers per thread of this warpgroup; TakeRegisters raises them.
template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace jaxkernels
