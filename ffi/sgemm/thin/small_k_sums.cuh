// Products of small k: a thread's sums of a tile, from the stages of small_k_stages.cuh.
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

  // RowOf returns row i of the threads of a lane, among the rows of a warp. With an MN-major A a
  // thread has neighbouring rows.
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

  // StoreFloats exchanges one row of each thread of a warp at a time, so that lanes store
  // neighbours.
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

}  // namespace jaxkernels
