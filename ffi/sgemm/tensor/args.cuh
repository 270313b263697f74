// Kernel arguments of the rung `tensor`, and its tile scheduler.
//
// Owns: the addresses in the scratch, and the order of tiles and of the parts of k.
#pragma once

#include <cuda_runtime.h>

#include "sgemm/args.cuh"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// TensorOperand is an operand and the addresses of its split form. Line numbers count padding: line
// l of matrix i has number i * tiles * 128 + l.
struct TensorOperand {
  const float* data;
  int64_t lines, depth;
  int64_t pitch;  // elements from one stored row to the next
  int64_t matrices;
  bool k_major;
  bool packs;  // stored rows start at 16-byte boundaries
  int tiles, steps;
  char* packed;            // tiles in the layout of layout.h
  float2* factors;         // x * y undoes the scale of a line
  uint32_t* maxima;        // bits of the largest finite |x|
  uint32_t* norms;         // sums of the scaled |x|, see LineFacts
  uint32_t* inexact;       // 1: the line is inexact (pair.cuh)
  uint32_t* tile_inexact;  // 1: the tile has an inexact line

  __device__ int64_t MatrixElements() const { return pitch * (k_major ? lines : depth); }
  __device__ int64_t Offset(int64_t line, int64_t k) const {
    return k_major ? line * pitch + k : k * pitch + line;
  }
};

struct TensorArgs {
  SgemmArgs product;
  TensorOperand a, b;
  uint32_t* flags;       // tiles that are recomputed as a whole
  uint32_t* flagged;     // flagged tiles of each batch member
  uint32_t max_flagged;  // with more in a batch member, all its tiles are recomputed
  uint2* repairs;        // tile of C (of all batch members), row * 128 + column within it
  uint32_t* repair_count;
  int tiles_m, tiles_n, steps;
  int batch;
  int splits, steps_of_split;  // parts of k, and steps of each
  float4* parts;               // sums of the parts, with split-k
};

// TooManyFlagged tells whether all tiles of a batch member will be recomputed, because too
// many are flagged. It may become true while other blocks examine tiles. It never becomes false
// again, so that true is final.
__device__ inline bool TooManyFlagged(const TensorArgs& args, int batch_index) {
  return *const_cast<const volatile uint32_t*>(&args.flagged[batch_index]) > args.max_flagged;
}

struct TensorTile {
  int batch_index, m, n;
};

// kTensorGroupM is the tile rows of a group. Blocks visit a group column by column, so that
// concurrent blocks share lines of A and of B in the L2.
inline constexpr unsigned kTensorGroupM = 16;

// TileOfIndex is the tile scheduler: it maps an index over all batch members to a tile.
__device__ inline TensorTile TileOfIndex(const TensorArgs& args, unsigned index) {
  const unsigned rows = args.tiles_m, columns = args.tiles_n;
  const unsigned batch_index = index / (rows * columns);
  index %= rows * columns;
  const unsigned first_row = index / (kTensorGroupM * columns) * kTensorGroupM;
  index -= first_row * columns;
  const unsigned height = min(kTensorGroupM, rows - first_row);
  return {static_cast<int>(batch_index), static_cast<int>(first_row + index % height),
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

}  // namespace jaxkernels
