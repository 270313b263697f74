// What the kernels of the rung `thin` are given, and where a block of them works.
//
// Owns: the roles of the operands: one has `many` lines (rows of op(A) or columns of op(B)), the
// other has `few`. Must not know: how lines are summed.
#ifndef JAXKERNELS_SGEMM_THIN_ARGS_CUH_
#define JAXKERNELS_SGEMM_THIN_ARGS_CUH_

#include <cstdint>

#include "sgemm/args.cuh"
#include "sgemm/thin/forms.h"

namespace jaxkernels {

// Passed to kernels by value.
struct ThinArgs {
  SgemmArgs product;
  bool many_is_a;       // the operand of many lines is A, that of few is B; or the other way round
  bool few_along_k;     // how the operand of few lines lies
  int few;              // its lines
  int lanes;            // kAcrossK: threads side by side along the lines
  int turns;            // kAlongK: how often a block takes lines
  int64_t many;         // lines of the other one
  int64_t k_per_block;  // that a block sums; the last ones may have less, or none
  unsigned groups;      // of lines, each of which has `parts` blocks
  unsigned parts;       // clusters of blocks, one after the other, share a group's k
  int64_t members;
};

// The lines and the share of k of a block.
struct ThinBlock {
  const float* many;  // of the block's member of the batch
  const float* few;
  int64_t member;
  int64_t first_line;
  int64_t first_k, count_k;  // count_k <= 0: the block has nothing to sum
  unsigned part;
};

__device__ inline ThinBlock BlockOfThin(const ThinArgs& args, int lines_of_block) {
  ThinBlock block;
  const unsigned group = blockIdx.x / args.parts;
  block.part = blockIdx.x % args.parts;
  block.member = group / args.groups;
  block.first_line = int64_t{group % args.groups} * lines_of_block;
  block.first_k = block.part * args.k_per_block;
  block.count_k = min(args.k_per_block, args.product.k - block.first_k);
  const MemberIndices matrices = IndicesOfMember(args.product, static_cast<int>(block.member));
  const float* const a = args.product.a + matrices.a * args.product.m * args.product.k;
  const float* const b = args.product.b + matrices.b * args.product.n * args.product.k;
  block.many = args.many_is_a ? a : b;
  block.few = args.many_is_a ? b : a;
  return block;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_ARGS_CUH_
