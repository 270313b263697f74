// Multiplies split operands on the tensor cores.
//
// Work split: a block computes one 128 x 128 tile after the other. One warpgroup copies; two
// multiply 64 x 128 each. The copies for the next tile run while they store a tile. With split-k a
// block computes one part of a tile's k after the other, and stores the sums for FinishParts.
//
// Memory: three stages of 64 KiB. A multiplying thread holds three times 64 sums. Result valid in:
// C, except for the listed repairs and flagged tiles; with split-k, the sums of the parts.
#pragma once

#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/epilogue.cuh"
#include "sgemm/tensor/mainloop.cuh"

namespace jaxkernels {

// Registers per thread (setmaxnreg): producer 24, consumers 240. 128 x 24 + 256 x 240 of 65536.
inline constexpr int kCopyRegisters = 24, kMultiplyRegisters = 240;

// VoteOfConsumers is an OR-reduction over all threads of the consumer warps.
__device__ inline bool VoteOfConsumers(bool vote) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.b32 mine, %1, 0;\n"
      "barrier.cta.red.or.aligned.pred all, 1, %2, mine;\n"
      "selp.b32 %0, 1, 0, all;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<int>(vote)), "n"(kWarpsOfTensorTile * 32)
      : "memory");
  return any != 0;
}

// TileRange is the tiles of a launch, over all batch members, in the order of TileOfIndex. With
// split-k it counts parts of tiles; those of a tile are neighbours.
struct TileRange {
  unsigned begin, end;
  bool probes;  // the launch first tests whether too many tiles are flagged already
};

// CopyTiles fills stages for the block's tiles, one after the other. One thread calls it.
template <bool kParts>
__device__ inline void CopyTiles(const TensorArgs& args, const StageRing& ring,
                                 const TileRange& tiles) {
  StageCursor cursor;
  for (unsigned index = tiles.begin + blockIdx.x; index < tiles.end; index += gridDim.x) {
    const StepsOfPart steps = StepsOf<kParts>(args, index);
    const TensorTile tile = TileOfIndex(args, kParts ? index / args.splits : index);
    const MatrixIndices matrices = MatrixIndicesOf(args.product, tile.batch_index);
    const int64_t tile_a = int64_t{matrices.a} * args.tiles_m + tile.m;
    const int64_t tile_b = int64_t{matrices.b} * args.tiles_n + tile.n;
    const char* a = args.a.packed + (tile_a * args.steps + steps.first) * kPackedTileBytes;
    const char* b = args.b.packed + (tile_b * args.steps + steps.first) * kPackedTileBytes;
    for (int step = 0; step < steps.count; ++step) {
      ring.WaitEmpty(cursor);
      ring.Fill(cursor.stage, a, b);
      a += kPackedTileBytes, b += kPackedTileBytes;
      cursor.Advance();
    }
  }
}

template <bool kCompensated, bool kParts>
__device__ inline void MultiplyTiles(const TensorArgs& args, const StageRing& ring,
                                     const TileRange& tiles) {
  const int thread = threadIdx.x - 128, lane = thread % 32;
  StageCursor cursor;
  for (unsigned index = tiles.begin + blockIdx.x; index < tiles.end; index += gridDim.x) {
    float sums[64];
    const int steps = StepsOf<kParts>(args, index).count;
    SumTile<kCompensated>(sums, ring, cursor, steps, thread / 128 * 64);
    if constexpr (kParts) {
      StorePart(args, index, thread, sums);
    } else {
      const int row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
      TensorEpilogue<64> epilogue(args, TileOfIndex(args, index), row, column);
      bool certain = epilogue.Decide(epilogue.CountUncertain(sums));
      // Recomputing a whole tile may read C, so nothing of that tile is stored here.
      if (args.product.beta != 0.0f) certain = !VoteOfConsumers(!certain);
      if (certain) epilogue.Store(sums);
    }
  }
}

// A block that returns early changes no result: all tiles are recomputed then.
template <bool kCompensated, bool kParts>
__global__ void __launch_bounds__(kTensorThreads, 1)
    TensorProduct(const __grid_constant__ TensorArgs args,
                  const __grid_constant__ TileRange tiles) {
#if JK_HAS_WGMMA
  extern __shared__ char smem[];
  __shared__ StageBarriers barriers;
  // Read by one thread, because other blocks flag tiles meanwhile.
  __shared__ bool too_many_flagged;
  const StageRing ring(barriers, (SharedAddress(smem) + 1023) & ~1023u);
  if (threadIdx.x == 0) {
    too_many_flagged = tiles.probes && TooManyFlagged(args, 0);
    ring.Init();
  }
  __syncthreads();
  if (too_many_flagged) return;
  if (threadIdx.x < 128) {
    GiveRegisters<kCopyRegisters>();
    if (threadIdx.x == 0) CopyTiles<kParts>(args, ring, tiles);
  } else {
    TakeRegisters<kMultiplyRegisters>();
    MultiplyTiles<kCompensated, kParts>(args, ring, tiles);
  }
#endif
}

}  // namespace jaxkernels
