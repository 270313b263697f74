// What the kernels of the rung `tensor` are given, by value.
#ifndef JAXKERNELS_SGEMM_TENSOR_ARGS_CUH_
#define JAXKERNELS_SGEMM_TENSOR_ARGS_CUH_

#include <cuda_runtime.h>

#include "sgemm/args.cuh"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// An operand, and the places for its split form. Padded lines count: line l of member i has the
// number i * tiles * 128 + l.
struct TensorOperand {
  const float* data;
  int64_t lines, depth;
  int64_t pitch;  // elements from one stored row to the next
  int64_t members;
  bool along_k;
  bool packs;  // stored rows begin at multiples of 16 bytes
  int tiles, steps;
  char* images;
  float2* factors;       // the product of both undoes the scale of a line
  uint32_t* maxima;      // bits of the largest finite |x|
  uint32_t* norms;       // of the scaled lines, see LineFacts
  uint32_t* marks;       // 1: the line is marked
  uint32_t* tile_marks;  // 1: a line of the tile is

  __host__ __device__ int64_t MemberElements() const { return pitch * (along_k ? lines : depth); }
  __host__ __device__ int64_t Images() const { return members * tiles * steps; }
};

struct TensorArgs {
  SgemmArgs product;
  TensorOperand a, b;
  uint32_t* flags;        // tiles that are computed again as a whole
  uint32_t* flagged;      // how many, of each member
  uint32_t most_flagged;  // where a member has more, all its tiles are computed again
  uint2* repairs;         // tile of C (of all members), row * 128 + column within it
  uint32_t* repair_count;
  int tiles_m, tiles_n, steps;
  int batch;
  // Where k is split (parts.cuh):
  int splits, steps_of_split;
  float4* parts;  // their sums
};

// Whether so many tiles of a member are flagged that all of them will be computed again. It may
// become true while other blocks examine tiles, and never false again: whoever sees it knows the
// end.
__device__ inline bool IsInVain(const TensorArgs& args, int member) {
  return *const_cast<const volatile uint32_t*>(&args.flagged[member]) > args.most_flagged;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_ARGS_CUH_
