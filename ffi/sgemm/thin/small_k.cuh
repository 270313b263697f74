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
#include "sgemm/epilogue.cuh"
#include "sgemm/thin/small_k_stages.cuh"

namespace jaxkernels {

template <int kTile, bool kKMajorA>
class SmallKSums {
 public:
  static constexpr SmallKTile kSize = kSmallKTiles[kTile];
  static constexpr int kRowsOfWarp = kSize.RowsOfWarp(), kColumnsOfBlock = kSize.Columns();

  // Lanes i and i ^ 1 share rows, lanes i and i ^ 2 columns. A warp's load of a pack then takes two
  // wavefronts instead of four.
  __device__ SmallKSums()
      : warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        column_lane_(kLanes == 1 ? 0 : lane_ % 2 + lane_ / 4 % kPairs * 2),
        row_lane_(kLanes == 1 ? lane_ : lane_ / 2 % 2 + lane_ / 4 / kPairs * 2) {}

  __device__ void Add(const float* stage, int rows, int quads) {
    const float* of_b = stage + kDepth * rows + 4 * column_lane_;
#pragma unroll 1
    for (int quad = 0; quad < quads; ++quad, of_b += 4 * kPitchB) {
      float y[4][kColumns];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int j = 0; j < kColumns; j += 4) LoadQuad(of_b + q * kPitchB + kLanes * j, &y[q][j]);
      }
      if constexpr (kKMajorA) {
        AddKMajor(stage, quad, y);
      } else {
        AddMNMajor(stage + 4 * quad * rows, rows, y);
      }
    }
  }

  // Store writes the sums of the tile at (first_row, first_column). `exchanged`: shared memory,
  // kColumns floats of each thread, for results that are not stored in packs.
  __device__ void Store(const SgemmArgs& product, unsigned batch_index, int64_t first_row,
                        int64_t first_column, float* exchanged) const {
    const int64_t row = first_row + warp_ * kRowsOfWarp;
    const int64_t offset = batch_index * (product.m * product.n) + row * product.n + first_column;
    const EpilogueParams to{product.alpha,           product.beta, product.c + offset,
                            product.out + offset,    product.n,    product.m - row,
                            product.n - first_column};
    if (!product.aligned_c) {
      StoreFloats(to, exchanged + warp_ * 32 * kColumns);
    } else if (to.beta == 0.0f) {
      StorePacks<false>(to);
    } else {
      StorePacks<true>(to);
    }
  }

 private:
  static constexpr int kLanes = kSize.lanes, kRowLanes = kSize.RowLanes();
  static constexpr int kRows = kSize.rows, kColumns = kSize.columns;
  static constexpr int kPairs = kLanes == 1 ? 1 : kLanes / 2;  // pairs of lanes side by side
  static constexpr int kNeighbours = kRows < 4 ? kRows : 4;    // rows, if A is MN-major
  static constexpr int kDepth = SmallKStageDepth(kKMajorA);
  static constexpr int kPitchB = SmallKPitchB(kColumnsOfBlock);

  // RowOf returns row i of the threads of a row lane, among the rows of a warp. With an MN-major A
  // a thread has neighbouring rows.
  static __device__ int RowOf(int row_lane, int i) {
    if (kKMajorA) return i * kRowLanes + row_lane;
    return (i / kNeighbours * kRowLanes + row_lane) * kNeighbours + i % kNeighbours;
  }

  __device__ void AddKMajor(const float* stage, int quad, const float (&y)[4][kColumns]) {
    const float* const of_a = stage + (warp_ * kRowsOfWarp + row_lane_) * kDepth;
    const unsigned place = SwizzledQuad(row_lane_, quad);
    // The loop takes four columns at a time, in serpentine order over rows and k. An FFMA then
    // often has two operands of the one before, which the reuse cache holds. us, all columns in one
    // order, and this order:
    // H200 (65536, 64, 64): 20.9, 19.3
    // H200 4096 x (64, 64, 64): 79.7, 74.9
#pragma unroll
    for (int first = 0; first < kColumns; first += 4) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float x[4];
        LoadQuad(of_a + i * kRowLanes * kDepth + 4 * SwizzledQuad(i * kRowLanes, place), x);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int j = first + ((i + q) % 2 == 0 ? c : 3 - c);
            sums_[i][j] = fmaf(x[q], y[q][j], sums_[i][j]);
          }
        }
      }
    }
  }

  __device__ void AddMNMajor(const float* stage, int rows, const float (&y)[4][kColumns]) {
    const float* of_a = stage + warp_ * kRowsOfWarp + kNeighbours * row_lane_;
#pragma unroll
    for (int q = 0; q < 4; ++q, of_a += rows) {
      float x[kRows];
#pragma unroll
      for (int i = 0; i < kRows; i += kNeighbours) {
        if constexpr (kNeighbours == 4) {
          LoadQuad(of_a + i * kRowLanes, &x[i]);
        } else {
          LoadPair(of_a + i * kRowLanes, &x[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sums_[i][j] = fmaf(x[i], y[q][j], sums_[i][j]);
      }
    }
  }

  template <bool kReadC>
  __device__ void StorePacks(const EpilogueParams& to) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = RowOf(row_lane_, i);
      if (row >= to.rows) continue;
#pragma unroll
      for (int j = 0; j < kColumns; j += 4) {
        const int column = 4 * column_lane_ + kLanes * j;
        if (column >= to.columns) continue;
        StoreQuad<kReadC>(to, row * to.pitch + column, &sums_[i][j]);
      }
    }
  }

  // StoreFloats exchanges a row of each thread of a warp at a time, so that lanes store neighbours.
  __device__ void StoreFloats(const EpilogueParams& to, float* exchanged) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kColumns; j += 4) {
        float* const at = exchanged + row_lane_ * kColumnsOfBlock + 4 * column_lane_ + kLanes * j;
        *reinterpret_cast<float4*>(at) = {sums_[i][j], sums_[i][j + 1], sums_[i][j + 2],
                                          sums_[i][j + 3]};
      }
      __syncwarp();
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        const int place = e * 32 + lane_;
        const int row = RowOf(place / kColumnsOfBlock, i), column = place % kColumnsOfBlock;
        if (row >= to.rows || column >= to.columns) continue;
        const int64_t at = row * to.pitch + column;
        to.out[at] = LinearCombinationAt(to.alpha, exchanged[place], to.beta, to.c + at);
      }
    }
  }

  int warp_, lane_, column_lane_, row_lane_;
  float sums_[kRows][kColumns] = {};
};

struct SmallKArgs {
  SgemmArgs product;
  bool b_k_major;
  unsigned tiles_m, tiles_n;
};

// WaitForStages branches, because cp.async.wait_group takes a constant.
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
