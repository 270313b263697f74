// Describes operands to the tensor memory accelerator (TMA).
//
// Owns: the tensor maps that TmaStages (stages.cuh) expects. Must not know: kernels.
#ifndef JAXKERNELS_SGEMM_PIPELINED_TENSOR_MAP_H_
#define JAXKERNELS_SGEMM_PIPELINED_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace jaxkernels {

// TmaOperand is a batched operand as one tensor, whose boxes are tiles.
struct TmaOperand {
  const float* data;
  bool k_major;  // K-major, else MN-major
  int64_t lines, depth, matrices;
  int64_t pitch;  // elements from one stored row to the next
  int block_lines, block_k;
};

// k of one box of a K-major operand: a line of the box fills 128 bytes of shared memory.
inline constexpr int kBoxDepth = 32;

// MapOperand encodes the map. A K-major operand has dimensions (depth, lines, matrices) and boxes
// of kBoxDepth x block_lines. Their 16-byte packs have the 128-byte swizzle: pack p of line l lies
// at place p ^ (l % 8). An MN-major operand has dimensions (lines, depth, matrices) and boxes of
// block_lines x block_k without swizzle.
//
// Requires: stored rows start at 16-byte boundaries, and sizes and strides fit a map. EngineOf in
// tile_choice.cc makes sure of both for every plan with kTma.
cudaError_t MapOperand(const TmaOperand& operand, CUtensorMap* map);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_PIPELINED_TENSOR_MAP_H_
