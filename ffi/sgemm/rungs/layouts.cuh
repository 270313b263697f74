// The layouts of the rungs thread_tile, warp_tile and split_tile for the kernel of
// register_tile.cuh.
#pragma once

#include "sgemm/rungs/register_tile.cuh"

namespace jaxkernels {

// The third rung: sums in registers. A thread computes 8 x 8 elements of C and multiplies 64 times
// for 16 loads from shared memory.
//
// Work split: 16 x 16 threads in the order of their numbers; a warp is 2 x 16 of them. Bank
// conflicts: kept on purpose, for the next rungs to cure. A lies row by row, [row][k], and is read
// float by float, two rows 64 floats apart at once. The 16-byte loads of B step over 8 floats
// from thread to thread, so that threads t and t + 4 use the same banks.
struct ThreadTileLayout {
  static constexpr SmemOrder kOrderOfA = SmemOrder::kLineMajor;
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

// The fourth rung: no bank conflicts. A is transposed on its way into shared memory, and a warp is
// 4 x 8 threads. The next tiles are prefetched during the arithmetic.
//
// Work split: 4 x 2 warps of 4 x 8 threads; a warp computes 32 x 64 elements of C. Bank conflicts:
// a 16-byte load serves eight threads at once. They read at most four different quads of A, 8
// floats apart (banks 0, 8, 16, 24 and the three after each), and two of B.
struct WarpTileLayout {
  static constexpr SmemOrder kOrderOfA = SmemOrder::kDepthMajor;
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

// The fifth rung: the other cure for the conflicts of thread_tile. A thread's 8 x 8 elements are
// four tiles of 4 x 4, 64 rows and 64 columns apart, so that neighbouring threads read neighbouring
// quads.
//
// Work split: 16 x 16 threads; a warp is 2 x 16 of them. Bank conflicts: none. Eight threads read
// 128 contiguous bytes of B and one quad of A. Stores of C gain too: a warp writes two whole
// sectors of four lines side by side.
struct SplitTileLayout {
  static constexpr SmemOrder kOrderOfA = SmemOrder::kDepthMajor;
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
