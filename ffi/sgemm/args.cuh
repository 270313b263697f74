// How a kernel of the ladder looks at its arguments.
//
// Owns: an operand as lines by k, and the batch member of a block. Must not know: plans, tiles.
#ifndef JAXKERNELS_SGEMM_ARGS_CUH_
#define JAXKERNELS_SGEMM_ARGS_CUH_

#include <cstdint>

#include "sgemm/args.h"

namespace jaxkernels {

// An operand of one batch member as a matrix of lines by k: a line is a row of op(A) or a column of
// op(B). kAlongK: elements of one line are neighbours in memory (A as it is, B transposed);
// otherwise neighbouring lines are (A transposed, B as it is).
template <bool kAlongK>
struct Operand {
  const float* data;
  int64_t lines;
  int64_t depth;  // k

  __device__ int64_t Offset(int64_t line, int64_t k) const {
    return kAlongK ? line * depth + k : k * lines + line;
  }
  // Zero outside, whatever lies there.
  __device__ float At(int64_t line, int64_t k) const {
    return line < lines && k < depth ? data[Offset(line, k)] : 0.0f;
  }
};

// Which matrices of A and of B a member of the batch multiplies.
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
