// Kernel arguments of the rung `thin`, and the work of a block.
//
// Owns: the roles of the operands. The long side (`many`) has many lines, the short side (`few`)
// has few. A line is a row of op(A) or a column of op(B). Must not know: how lines are summed.
#ifndef JAXKERNELS_SGEMM_THIN_ARGS_CUH_
#define JAXKERNELS_SGEMM_THIN_ARGS_CUH_

#include <cstdint>

#include "sgemm/args.cuh"
#include "sgemm/thin/forms.h"

namespace jaxkernels {

// ThinArgs is passed to kernels by value.
struct ThinArgs {
  SgemmArgs product;
  bool many_is_a;       // A is the long side and B the short one; or the other way round
  bool few_along_k;     // the short side is K-major
  int few;              // lines of the short side
  int lanes;            // kAcrossK: threads side by side along the lines
  int turns;            // kAlongK: iterations of a block over its lines
  int64_t many;         // lines of the long side
  int64_t k_per_block;  // of a block; the last ones may have less, or none
  unsigned groups;      // groups of lines, with `parts` blocks each
  unsigned parts;       // blocks that share a group's k: clusters, one after the other
  int64_t members;
};

// ThinBlock is the lines of a block and its share of k.
struct ThinBlock {
  const float* many;  // of the block's batch member
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
