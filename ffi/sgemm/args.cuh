// Views of the arguments inside a kernel of the ladder.
//
// Owns: operands as lines by k, and the matrices of a batch member. Must not know: plans, tiles.
#pragma once

#include <cstdint>

#include "sgemm/args.h"

namespace jaxkernels {

// Operand is one matrix of a batch, seen as lines by k. A line is a row of op(A) or a column of
// op(B). kKMajor means K-major: elements of one line are contiguous (A not transposed, B
// transposed). Otherwise the operand is MN-major: neighbouring lines are contiguous (A transposed,
// B not transposed).
template <bool kKMajor>
struct Operand {
  const float* data;
  int64_t lines;
  int64_t depth;  // k

  __device__ int64_t Offset(int64_t line, int64_t k) const {
    return kKMajor ? line * depth + k : k * lines + line;
  }
  // Elements out of range are zero; memory is not read there.
  __device__ float At(int64_t line, int64_t k) const {
    return line < lines && k < depth ? data[Offset(line, k)] : 0.0f;
  }
};

// LoadQuad loads four neighbours, from a 16-byte boundary; LoadPair loads two, from one of 8 bytes.
__device__ inline void LoadQuad(const float* from, float* to) {
  const float4 quad = *reinterpret_cast<const float4*>(from);
  to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
}
__device__ inline void LoadPair(const float* from, float* to) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  to[0] = pair.x, to[1] = pair.y;
}

struct MatrixIndices {
  int a = 0;
  int b = 0;
};

__device__ inline MatrixIndices MatrixIndicesOf(const SgemmArgs& args, int batch_index) {
  MatrixIndices indices;
#pragma unroll
  for (int i = kMaxBatchDims - 1; i >= 0; --i) {
    if (i >= args.batch.dims) continue;
    const int size = static_cast<int>(args.batch.dim[i].size);
    const int position = batch_index % size;
    batch_index /= size;
    indices.a += position * static_cast<int>(args.batch.dim[i].stride_a);
    indices.b += position * static_cast<int>(args.batch.dim[i].stride_b);
  }
  return indices;
}

struct RungGrid {
  unsigned tiles_m, tiles_n;
};

struct RungBlock {
  int64_t tile_m, tile_n;
  const float* a;  // of the block's batch member
  const float* b;
  int64_t c_offset;
};

// BlockOfGrid orders tiles along n first, then along m, then over the batch.
__device__ inline RungBlock BlockOfGrid(const SgemmArgs& args, const RungGrid& grid) {
  const unsigned tiles = grid.tiles_m * grid.tiles_n;
  const unsigned tile = blockIdx.x % tiles, batch_index = blockIdx.x / tiles;
  const MatrixIndices matrices = MatrixIndicesOf(args, batch_index);
  return {tile / grid.tiles_n, tile % grid.tiles_n, args.a + matrices.a * args.m * args.k,
          args.b + matrices.b * args.n * args.k, batch_index * args.m * args.n};
}

}  // namespace jaxkernels
