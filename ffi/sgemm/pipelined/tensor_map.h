// Describes operands to the tensor memory accelerator (TMA).
//
// Owns: the tensor maps that TmaStages (stages.cuh) expects. Must not know: kernels.
#ifndef JAXKERNELS_SGEMM_PIPELINED_TENSOR_MAP_H_
#define JAXKERNELS_SGEMM_PIPELINED_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace jaxkernels {

// All members of a batched operand, as a tensor whose boxes are tiles.
struct TmaOperand {
  const float* data;
  bool along_k;  // elements of one line are neighbours in memory, else neighbouring lines
  int64_t lines, depth, members;
  int64_t pitch;  // elements from one stored row to the next
  int block_lines, block_k;
};

// How many k of an operand along k one box holds: a line of it fills 128 bytes of shared memory.
inline constexpr int kBoxDepth = 32;

// An operand along k has the dimensions (depth, lines, members) and boxes of kBoxDepth x
// block_lines, whose 16-byte packs are swizzled: pack p of line l lies where p ^ (l % 8) would. Any
// other operand has (lines, depth, members) and boxes of block_lines x block_k as they are.
//
// Requires, of every plan that names kTma: stored rows begin at multiples of 16 bytes, and sizes
// and strides fit a map (EngineOf in tile_choice.cc).
cudaError_t MapOperand(const TmaOperand& operand, CUtensorMap* map);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_PIPELINED_TENSOR_MAP_H_
