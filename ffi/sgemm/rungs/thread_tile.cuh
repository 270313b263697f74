// The third rung: sums in registers. A thread computes 8 x 8 elements of C and multiplies 64 times
// for 16 loads from shared memory.
//
// Work split: 16 x 16 threads in the order of their numbers; a warp is 2 x 16 of them. Bank
// conflicts: kept on purpose, for the next rungs to cure. A lies as it is stored, [row][k], and is
// read float by float, two rows 64 floats apart at once. The 16-byte loads of B step over 8 floats
// from thread to thread, so that threads t and t + 4 use the same banks.
#ifndef JAXKERNELS_SGEMM_RUNGS_THREAD_TILE_CUH_
#define JAXKERNELS_SGEMM_RUNGS_THREAD_TILE_CUH_

#include "sgemm/rungs/register_tile.cuh"

namespace jaxkernels {

struct ThreadTileLayout {
  static constexpr TileOrder kOrderOfA = TileOrder::kAsStored;
  static constexpr bool kPrefetches = false;

  int row = threadIdx.x / 16 * 8, column = threadIdx.x % 16 * 8;

  static __device__ int RowOf(int i) { return i; }
  static __device__ int ColumnOf(int j) { return j; }

  __device__ void LoadA(const float* tile, int k, float (&fragment)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) fragment[i] = tile[(row + i) * kRungTileK + k];
  }
  __device__ void LoadB(const float* tile, int k, float (&fragment)[8]) const {
    LoadQuads<4>(tile, k, column, fragment);
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNGS_THREAD_TILE_CUH_
