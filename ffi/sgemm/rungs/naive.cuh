// The first rung: a thread computes one element of C. It reads a whole row of op(A) and a whole
// column of op(B) from global memory.
//
// Work split: 32 x 32 threads, neighbouring threads in a row of C. A warp reads neighbouring
// columns of B and one element of A. Memory: 2 * m * n * k reads, many of them served by the
// caches.
#pragma once

#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/tiles.h"

namespace jaxkernels {

template <bool kKMajorA, bool kKMajorB>
__global__ void __launch_bounds__(kNaiveTile.Threads())
    NaiveSgemm(const __grid_constant__ SgemmArgs args, const __grid_constant__ RungGrid grid) {
  const RungBlock block = BlockOfGrid(args, grid);
  constexpr int kRows = kNaiveTile.block_m, kColumns = kNaiveTile.block_n;
  const int64_t row = block.tile_m * kRows + threadIdx.x / kColumns;
  const int64_t column = block.tile_n * kColumns + threadIdx.x % kColumns;
  if (row >= args.m || column >= args.n) return;

  const Operand<kKMajorA> a{block.a, args.m, args.k};
  const Operand<kKMajorB> b{block.b, args.n, args.k};
  float sum = 0.0f;
  for (int64_t k = 0; k < args.k; ++k) {
    sum = fmaf(a.data[a.Offset(row, k)], b.data[b.Offset(column, k)], sum);
  }
  const int64_t offset = block.c_offset + row * args.n + column;
  args.out[offset] = LinearCombinationAt(args.alpha, sum, args.beta, args.c + offset);
}

}  // namespace jaxkernels
