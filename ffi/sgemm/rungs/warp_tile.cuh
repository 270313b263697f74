// The fourth rung: no bank conflicts. A is transposed on its way into shared memory, and a warp is
// 4 x 8 threads. The next tiles are prefetched during the arithmetic.
//
// Work split: 4 x 2 warps of 4 x 8 threads; a warp computes 32 x 64 elements of C. Bank conflicts:
// a 16-byte load serves eight threads at once. They read at most four different quads of A, 8
// floats apart (banks 0, 8, 16, 24 and the three after each), and two of B.
#ifndef JAXKERNELS_SGEMM_RUNGS_WARP_TILE_CUH_
#define JAXKERNELS_SGEMM_RUNGS_WARP_TILE_CUH_

#include "sgemm/rungs/register_tile.cuh"

namespace jaxkernels {

struct WarpTileLayout {
  static constexpr TileOrder kOrderOfA = TileOrder::kTransposed;
  static constexpr bool kPrefetches = true;

  int row, column;

  __device__ WarpTileLayout() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row = (warp / 2 * 4 + lane % 4) * 8;
    column = (warp % 2 * 8 + lane / 4) * 8;
  }

  static __device__ int RowOf(int i) { return i; }
  static __device__ int ColumnOf(int j) { return j; }

  __device__ void LoadA(const float* tile, int k, float (&fragment)[8]) const {
    LoadQuads<4>(tile, k, row, fragment);
  }
  __device__ void LoadB(const float* tile, int k, float (&fragment)[8]) const {
    LoadQuads<4>(tile, k, column, fragment);
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNGS_WARP_TILE_CUH_
