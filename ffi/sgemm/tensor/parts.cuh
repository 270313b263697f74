// Split-k: the parts of k, whose sums meet in the scratch.
//
// Owns: the order of tiles and of their parts, the layout of a part's sums, and the kernel that
// adds them. Must not know: how the sums are computed, who repairs.
//
// A separate launch adds the parts. The block that ends last could do it instead, but one SM reads
// 64 bytes a cycle, and 32 parts of a tile are 2 MiB.
#ifndef JAXKERNELS_SGEMM_TENSOR_PARTS_CUH_
#define JAXKERNELS_SGEMM_TENSOR_PARTS_CUH_

#include "core/cluster.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/finish.cuh"

namespace jaxkernels {

// Tile rows of a band. Blocks visit a band column by column, so that concurrent blocks share lines
// of A and of B in the L2.
inline constexpr unsigned kTensorBandTiles = 16;

__device__ inline TensorTile TileOfIndex(const TensorArgs& args, unsigned index) {
  const unsigned rows = args.tiles_m, columns = args.tiles_n;
  const unsigned member = index / (rows * columns);
  index %= rows * columns;
  const unsigned first_row = index / (kTensorBandTiles * columns) * kTensorBandTiles;
  index -= first_row * columns;
  const unsigned height = min(kTensorBandTiles, rows - first_row);
  return {static_cast<int>(member), static_cast<int>(first_row + index % height),
          static_cast<int>(index / height)};
}

struct StepsOfPart {
  int first, count;
};

// `index` is that of a tile, or of a part of a tile. The last parts may have fewer steps, or none.
template <bool kParts>
__device__ inline StepsOfPart StepsOf(const TensorArgs& args, unsigned index) {
  if constexpr (kParts) {
    const int first = min(static_cast<int>(index % args.splits) * args.steps_of_split, args.steps);
    return {first, min(args.steps_of_split, args.steps - first)};
  } else {
    return {0, args.steps};
  }
}

// The sums of a part are stored as its threads hold them: by packs of four, then by threads.
inline constexpr int kPacksOfThread = 64 / 4, kMultiplyingThreads = kWarpsOfTensorTile * 32;
inline constexpr int kPacksOfPart = kPacksOfThread * kMultiplyingThreads;
static_assert(kPacksOfPart * sizeof(float4) == kTensorTileBytes);

__device__ inline void StorePart(const TensorArgs& args, unsigned index, int thread,
                                 const float (&sums)[64]) {
  float4* const to = args.parts + int64_t{index} * kPacksOfPart + thread;
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i) {
    const float* const pack = &sums[i * 4];
    to[i * kMultiplyingThreads] = {pack[0], pack[1], pack[2], pack[3]};
  }
}

// AddParts adds the parts at `parts`, kPacksOfPart packs apart, in order. It sums the rounding
// error of each addition, and adds it at the end. The error is exact if the sum is not smaller than
// the part. Scaled sums are finite or NaN.
template <int kPacks>
__device__ inline void AddParts(const float4* parts, int count, float (&sums)[kPacks * 4]) {
  float lost[kPacks * 4];
#pragma unroll
  for (int i = 0; i < kPacks * 4; ++i) sums[i] = lost[i] = 0.0f;
#pragma unroll 4
  for (int part = 0; part < count; ++part) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const float4 pack = __ldg(&parts[part * int64_t{kPacksOfPart} + i * kMultiplyingThreads]);
      const float added[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[i * 4 + j] + added[j];
        lost[i * 4 + j] += added[j] - (sum - sums[i * 4 + j]);
        sums[i * 4 + j] = sum;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks * 4; ++i) sums[i] += lost[i];
}

// FinishParts runs a cluster of kFinishBlocks blocks per tile. A block finishes the 16 x 128 sums
// of one warp of the product; each of its own warps has 16 columns.
inline constexpr int kFinishBlocks = kWarpsOfTensorTile;
inline constexpr int kFinishWarps = 8, kFinishThreads = kFinishWarps * 32;

__global__ void __launch_bounds__(kFinishThreads)
    FinishParts(const __grid_constant__ TensorArgs args) {
#if JK_HAS_CLUSTERS
  constexpr int kPacks = kPacksOfThread / kFinishWarps;
  __shared__ int uncertain[kFinishWarps];
  const unsigned index = blockIdx.x / kFinishBlocks;
  const int warp_of_product = blockIdx.x % kFinishBlocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[kPacks * 4];
  AddParts<kPacks>(args.parts + int64_t{index} * args.splits * kPacksOfPart +
                       warp * kPacks * kMultiplyingThreads + warp_of_product * 32 + lane,
                   args.splits, sums);
  const int row = warp_of_product * 16 + lane / 4;
  const int column = warp * (kTensorLines / kFinishWarps) + lane % 4 * 2;
  TensorFinish<kPacks * 4> finish(args, TileOfIndex(args, index), row, column);
  const int of_warp = finish.CountUncertain(sums);
  if (lane == 0) uncertain[warp] = of_warp;
  __syncthreads();
  int count = 0;
#pragma unroll
  for (int i = 0; i < kFinishWarps; ++i) count += uncertain[i];
  bool certain = finish.Decide(count);
  // Recomputing a whole tile may read C, so nothing of that tile is stored here.
  if (args.product.beta != 0.0f) {
    WaitForCluster();
    certain = !finish.IsFlagged();
  }
  if (certain) finish.Store(sums);
#endif
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_PARTS_CUH_
