// Kernel arguments of the rung `tensor`, passed by value.
#ifndef JAXKERNELS_SGEMM_TENSOR_ARGS_CUH_
#define JAXKERNELS_SGEMM_TENSOR_ARGS_CUH_

#include <cuda_runtime.h>

#include "sgemm/args.cuh"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// TensorOperand is an operand and the addresses of its split form. Line numbers count padding: line
// l of member i has number i * tiles * 128 + l.
struct TensorOperand {
  const float* data;
  int64_t lines, depth;
  int64_t pitch;  // elements from one stored row to the next
  int64_t members;
  bool along_k;
  bool packs;  // stored rows start at 16-byte boundaries
  int tiles, steps;
  char* images;
  float2* factors;       // x * y undoes the scale of a line
  uint32_t* maxima;      // bits of the largest finite |x|
  uint32_t* norms;       // sums of the scaled |x|, see LineFacts
  uint32_t* marks;       // 1: the line is marked (pair.cuh)
  uint32_t* tile_marks;  // 1: the tile has a marked line

  __host__ __device__ int64_t MemberElements() const { return pitch * (along_k ? lines : depth); }
  __host__ __device__ int64_t Images() const { return members * tiles * steps; }
};

struct TensorArgs {
  SgemmArgs product;
  TensorOperand a, b;
  uint32_t* flags;        // tiles that are recomputed as a whole
  uint32_t* flagged;      // flagged tiles of each member
  uint32_t most_flagged;  // with more in a member, all its tiles are recomputed
  uint2* repairs;         // tile of C (of all members), row * 128 + column within it
  uint32_t* repair_count;
  int tiles_m, tiles_n, steps;
  int batch;
  // Fields for split-k (parts.cuh):
  int splits, steps_of_split;
  float4* parts;  // sums of the parts
};

// IsInVain tells whether a member has too many flagged tiles, so that all its tiles will be
// recomputed. It may become true while other blocks examine tiles. It never becomes false again, so
// that true is final.
__device__ inline bool IsInVain(const TensorArgs& args, int member) {
  return *const_cast<const volatile uint32_t*>(&args.flagged[member]) > args.most_flagged;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_ARGS_CUH_
