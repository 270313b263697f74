// Products of small k: operands are read and C is written once, which takes at least as long as the
// arithmetic.
//
// Work split: a block computes a tile of C. A thread has `rows` x `columns` sums of it, and `lanes`
// threads side by side share rows (SmallKTile). Memory: a stage is some k of the tile's rows of A
// and columns of B. A block requests all stages before it waits for the first one, or those of
// kSmallKMaxStagedK k. Every sum is one chain of FFMA in the order of k. Requires: a thread block
// of whole warps, kSmallKMaxThreads at most.
#pragma once

#include <cstdint>

#include "sgemm/args.cuh"
#include "sgemm/thin/small_k_stages.cuh"
#include "sgemm/thin/small_k_sums.cuh"

namespace jaxkernels {

struct SmallKArgs {
  SgemmArgs product;
  bool b_k_major;
  unsigned tiles_m, tiles_n;
};

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

template <int kTile, bool kKMajorA>
__global__ void __launch_bounds__(kSmallKMaxThreads, kSmallKTiles[kTile].blocks_per_sm)
    SumSmallK(const __grid_constant__ SmallKArgs args) {
  using Sums = SmallKSums<kTile, kKMajorA>;
  constexpr int kColumns = Sums::kColumnsOfBlock;
  constexpr int kDepth = SmallKStageDepth(kKMajorA), kMost = kSmallKMaxStagedK / kDepth;
  extern __shared__ __align__(128) float staged[];
  const SgemmArgs& product = args.product;
  const int rows = blockDim.x / 32 * Sums::kRowsOfWarp;
  const int stage_floats = kDepth * (rows + SmallKPitchB(kColumns));
  const unsigned tiles = args.tiles_m * args.tiles_n;
  const unsigned tile = blockIdx.x % tiles, batch_index = blockIdx.x / tiles;
  const int64_t first_row = int64_t{tile / args.tiles_n} * rows;
  const int64_t first_column = int64_t{tile % args.tiles_n} * kColumns;
  const MatrixIndices matrices = MatrixIndicesOf(product, static_cast<int>(batch_index));
  const SmallKOperand a(product.a + matrices.a * product.m * product.k, kKMajorA, product.m,
                        product.k, first_row, rows, product.aligned_a);
  const SmallKOperand b(product.b + matrices.b * product.n * product.k, args.b_k_major, product.n,
                        product.k, first_column, kColumns, product.aligned_b);
  const int stages = (a.depth + kDepth - 1) / kDepth;
  const int prefetched = min(stages, kMost) - 1;  // stages copied ahead of the arithmetic

  Sums sums;
#pragma unroll 1
  for (int s = -prefetched; s < stages; ++s) {
    const int next = s + prefetched;
    if (next < stages) {
      if (next >= kMost) __syncthreads();  // all threads are done with the stage to be overwritten
      float* const stage = staged + next % kMost * stage_floats;
      if constexpr (kKMajorA) {
        CopyKMajorRows<kDepth>(a, next * kDepth, rows, stage);
      } else {
        CopyMNMajor<kDepth, false>(a, next * kDepth, rows, rows, stage);
      }
      if (args.b_k_major) {
        CopyKMajorColumns<kDepth, kColumns>(b, next * kDepth, stage + kDepth * rows);
      } else {
        CopyMNMajor<kDepth, true>(b, next * kDepth, kColumns, SmallKPitchB(kColumns),
                                  stage + kDepth * rows);
      }
      CommitAsyncGroup();
    }
    if (s < 0) continue;
    WaitForStages(min(prefetched, stages - 1 - s));
    __syncthreads();
    sums.Add(staged + s % kMost * stage_floats, rows, QuadsFrom(s * kDepth, a.depth, kDepth / 4));
  }
  if (!product.aligned_c) __syncthreads();
  sums.Store(product, batch_index, first_row, first_column, staged);
}

}  // namespace jaxkernels
