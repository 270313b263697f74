// The second rung: a block copies tiles of A and B into shared memory, where 32 threads use every
// element.
//
// Work split: 32 x 32 threads compute one element of C each, in tiles of 32 k. Memory: each operand
// is read from global memory once for every 32 rows (or columns) of C. Loads are coalesced for both
// layouts. Shared memory: 2 * 32 * 33 floats; the odd pitch spreads a column over the banks.
#pragma once

#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/tiles.h"

namespace jaxkernels {

template <bool kKMajorA, bool kKMajorB>
__global__ void __launch_bounds__(kSharedTile.Threads())
    BlockTileSgemm(const __grid_constant__ SgemmArgs args, const __grid_constant__ RungGrid grid) {
  constexpr int kTile = kSharedTile.block_k;
  static_assert(kSharedTile.block_m == kTile && kSharedTile.block_n == kTile,
                "a thread loads one element of each operand");
  __shared__ float a_smem[kTile][kTile + 1];  // [row of C][k]
  __shared__ float b_smem[kTile][kTile + 1];  // [column of C][k]

  const RungBlock block = BlockOfGrid(args, grid);
  const int y = threadIdx.x / kTile, x = threadIdx.x % kTile;
  const int64_t first_m = block.tile_m * kTile, first_n = block.tile_n * kTile;
  const Operand<kKMajorA> a{block.a, args.m, args.k};
  const Operand<kKMajorB> b{block.b, args.n, args.k};
  // Neighbouring threads load elements that are neighbours in memory.
  const int a_line = kKMajorA ? y : x, a_k = kKMajorA ? x : y;
  const int b_line = kKMajorB ? y : x, b_k = kKMajorB ? x : y;

  float sum = 0.0f;
  for (int64_t k0 = 0; k0 < args.k; k0 += kTile) {
    a_smem[a_line][a_k] = a.At(first_m + a_line, k0 + a_k);
    b_smem[b_line][b_k] = b.At(first_n + b_line, k0 + b_k);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; ++k) sum = fmaf(a_smem[y][k], b_smem[x][k], sum);
    __syncthreads();
  }

  const int64_t row = first_m + y, column = first_n + x;
  if (row >= args.m || column >= args.n) return;
  const int64_t offset = block.c_offset + row * args.n + column;
  args.out[offset] = LinearCombinationAt(args.alpha, sum, args.beta, args.c + offset);
}

}  // namespace jaxkernels
