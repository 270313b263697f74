// The fifth rung: the other cure for the conflicts of thread_tile. A thread's 8 x 8 elements are
// four tiles of 4 x 4, 64 rows and 64 columns apart, so that neighbouring threads read neighbouring
// quads.
//
// Work split: 16 x 16 threads; a warp is 2 x 16 of them. Bank conflicts: none. Eight threads read
// 128 contiguous bytes of B and one quad of A. Stores of C gain too: a warp writes two whole
// sectors of four lines side by side.
#ifndef JAXKERNELS_SGEMM_RUNGS_SPLIT_TILE_CUH_
#define JAXKERNELS_SGEMM_RUNGS_SPLIT_TILE_CUH_

#include "sgemm/rungs/register_tile.cuh"

namespace jaxkernels {

struct SplitTileLayout {
  static constexpr TileOrder kOrderOfA = TileOrder::kTransposed;
  static constexpr bool kPrefetches = true;
  static constexpr int kApart = kRungTile / 2;

  int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;

  static __device__ int RowOf(int i) { return i / 4 * kApart + i % 4; }
  static __device__ int ColumnOf(int j) { return j / 4 * kApart + j % 4; }

  __device__ void LoadA(const float* tile, int k, float (&fragment)[8]) const {
    LoadQuads<kApart>(tile, k, row, fragment);
  }
  __device__ void LoadB(const float* tile, int k, float (&fragment)[8]) const {
    LoadQuads<kApart>(tile, k, column, fragment);
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNGS_SPLIT_TILE_CUH_
