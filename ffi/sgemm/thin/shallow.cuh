// Few k: operands are read and C is written once, and that takes as long as the arithmetic or
// longer.
//
// Work split: a block makes a tile of C. A thread has `rows` by `columns` sums of it, `lanes`
// threads side by side share rows (forms.h). Memory: stages, each some k of the tile's rows of A
// and columns of B. A block asks for all of them before it waits for the first one, or for those of
// kShallowMostStaged k. Every sum is one chain of FFMA in the order of k.
// Requires: a thread block of whole warps, kShallowMostThreads at most.
#ifndef JAXKERNELS_SGEMM_THIN_SHALLOW_CUH_
#define JAXKERNELS_SGEMM_THIN_SHALLOW_CUH_

#include <cstdint>

#include "sgemm/args.cuh"
#include "sgemm/thin/forms.h"
#include "sgemm/thin/shallow_stages.cuh"
#include "sgemm/thin/shallow_sums.cuh"

namespace jaxkernels {

// Passed to kernels by value.
struct ShallowArgs {
  SgemmArgs product;
  bool along_k_b;
  unsigned tiles_m, tiles_n;
};

// Until so many stages, or fewer, are still on their way.
__device__ inline void WaitForStages(int pending) {
  if (pending >= 3) {
    WaitForAsyncGroups<3>();
  } else if (pending == 2) {
    WaitForAsyncGroups<2>();
  } else if (pending == 1) {
    WaitForAsyncGroups<1>();
  } else {
    WaitForAsyncGroups<0>();
  }
}

template <int kTile, bool kAlongA>
__global__ void __launch_bounds__(kShallowMostThreads, kShallowTiles[kTile].blocks_per_sm)
    SumShallow(const __grid_constant__ ShallowArgs args) {
  using Sums = ShallowSums<kTile, kAlongA>;
  constexpr int kColumns = Sums::kColumnsOfBlock;
  constexpr int kDepth = ShallowStageDepth(kAlongA), kMost = kShallowMostStaged / kDepth;
  extern __shared__ __align__(128) float staged[];
  const SgemmArgs& product = args.product;
  const int rows = blockDim.x / 32 * Sums::kRowsOfWarp;
  const int stage_floats = kDepth * (rows + ShallowPitchB(kColumns));
  const unsigned tiles = args.tiles_m * args.tiles_n;
  const unsigned tile = blockIdx.x % tiles, member = blockIdx.x / tiles;
  const int64_t first_row = int64_t{tile / args.tiles_n} * rows;
  const int64_t first_column = int64_t{tile % args.tiles_n} * kColumns;
  const MemberIndices matrices = IndicesOfMember(product, static_cast<int>(member));
  const ShallowOperand a(product.a + matrices.a * product.m * product.k, kAlongA, product.m,
                         product.k, first_row, rows, product.aligned_a);
  const ShallowOperand b(product.b + matrices.b * product.n * product.k, args.along_k_b, product.n,
                         product.k, first_column, kColumns, product.aligned_b);
  const int stages = (a.depth + kDepth - 1) / kDepth;
  const int lead = min(stages, kMost) - 1;  // of copies before the arithmetic

  Sums sums;
#pragma unroll 1
  for (int s = -lead; s < stages; ++s) {
    const int next = s + lead;
    if (next < stages) {
      if (next >= kMost) __syncthreads();  // all are done with the stage before
      float* const stage = staged + next % kMost * stage_floats;
      if constexpr (kAlongA) {
        CopyRowsAlongK<kDepth>(a, next * kDepth, rows, stage);
      } else {
        CopyAcrossK<kDepth, false>(a, next * kDepth, rows, rows, stage);
      }
      if (args.along_k_b) {
        CopyColumnsAlongK<kDepth, kColumns>(b, next * kDepth, stage + kDepth * rows);
      } else {
        CopyAcrossK<kDepth, true>(b, next * kDepth, kColumns, ShallowPitchB(kColumns),
                                  stage + kDepth * rows);
      }
      CommitAsyncGroup();
    }
    if (s < 0) continue;
    WaitForStages(min(lead, stages - 1 - s));
    __syncthreads();
    sums.Add(staged + s % kMost * stage_floats, rows, QuadsFrom(s * kDepth, a.depth, kDepth / 4));
  }
  if (!product.aligned_c) __syncthreads();
  sums.Store(product, member, first_row, first_column, staged);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_SHALLOW_CUH_
