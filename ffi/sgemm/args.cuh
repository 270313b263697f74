// Views of the arguments inside a kernel of the ladder.
//
// Owns: operands as lines by k, and the matrices of a batch member. Must not know: plans, tiles.
#ifndef JAXKERNELS_SGEMM_ARGS_CUH_
#define JAXKERNELS_SGEMM_ARGS_CUH_

#include <cstdint>

#include "sgemm/args.h"

namespace jaxkernels {

// Operand is one matrix of a batch, seen as lines by k. A line is a row of op(A) or a column of
// op(B). kAlongK means K-major: elements of one line are contiguous (A not transposed, B
// transposed). Otherwise the operand is MN-major: neighbouring lines are contiguous (A transposed,
// B not transposed).
template <bool kAlongK>
struct Operand {
  const float* data;
  int64_t lines;
  int64_t depth;  // k

  __device__ int64_t Offset(int64_t line, int64_t k) const {
    return kAlongK ? line * depth + k : k * lines + line;
  }
  // Elements out of range are zero; memory is not read there.
  __device__ float At(int64_t line, int64_t k) const {
    return line < lines && k < depth ? data[Offset(line, k)] : 0.0f;
  }
};

// MemberIndices are the matrices of A and B that a batch member multiplies.
struct MemberIndices {
  int a = 0;
  int b = 0;
};

__device__ inline MemberIndices IndicesOfMember(const SgemmArgs& args, int member) {
  MemberIndices indices;
#pragma unroll
  for (int i = kMaxBatchDims - 1; i >= 0; --i) {
    if (i >= args.batch_dims) continue;
    const int size = static_cast<int>(args.batch[i].size);
    const int position = member % size;
    member /= size;
    indices.a += position * static_cast<int>(args.batch[i].stride_a);
    indices.b += position * static_cast<int>(args.batch[i].stride_b);
  }
  return indices;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_ARGS_CUH_
