// Products of a short side and a long side, which is read once, straight into registers: kernel
// arguments, the work of a block, the short side in shared memory, and the stores. k_major.cuh and
// mn_major.cuh have a kernel for each layout of the long side.
//
// Owns: the roles of the operands, and the sum over the blocks that share k. The long side has many
// lines, the short side has few. A line is a row of op(A) or a column of op(B).
#pragma once

#include <cstdint>

#include "core/cluster.cuh"
#include "core/shared_address.cuh"
#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/pipelined/async_copy.cuh"

namespace jaxkernels {

struct ThinArgs {
  SgemmArgs product;
  bool long_is_a;      // A is the long side and B the short one; or the other way round
  bool short_k_major;  // the short side is K-major
  int short_lines;
  int lanes;       // kMNMajor: threads side by side along the lines
  int iterations;  // kKMajor: iterations of a block over its lines
  int64_t long_lines;
  int64_t k_per_block;  // of a block; the last ones may have less, or none
  unsigned groups;      // groups of lines, with `parts` blocks each
  unsigned parts;       // blocks that share a group's k: clusters, one after the other
  int64_t batch_count;
};

struct ThinBlock {
  const float* long_side;  // of the block's batch member
  const float* short_side;
  int64_t batch_index;
  int64_t first_line;
  int64_t first_k, count_k;  // count_k <= 0: the block has nothing to sum
  unsigned part;
};

__device__ inline ThinBlock BlockOfThin(const ThinArgs& args, int lines_of_block) {
  ThinBlock block;
  const unsigned group = blockIdx.x / args.parts;
  block.part = blockIdx.x % args.parts;
  block.batch_index = group / args.groups;
  block.first_line = int64_t{group % args.groups} * lines_of_block;
  block.first_k = block.part * args.k_per_block;
  block.count_k = min(args.k_per_block, args.product.k - block.first_k);
  const MatrixIndices matrices = MatrixIndicesOf(args.product, static_cast<int>(block.batch_index));
  const float* const a = args.product.a + matrices.a * args.product.m * args.product.k;
  const float* const b = args.product.b + matrices.b * args.product.n * args.product.k;
  block.long_side = args.long_is_a ? a : b;
  block.short_side = args.long_is_a ? b : a;
  return block;
}

// StageShortSide copies `width` k of the short side to shared memory, all in flight at once.
// Missing lines, and k from `count` on, are zero. Lines are kLinePitch floats apart; if that is 0,
// the lines of one k lie together, and width is count.
template <int kShortLines, int kLinePitch>
__device__ void StageShortSide(const ThinArgs& args, const float* short_side, int64_t first_k,
                               int count, int width, float* staged) {
  constexpr bool kByLine = kLinePitch > 0;
  for (int i = threadIdx.x; i < width * kShortLines; i += kThinThreads) {
    const int line = kByLine && args.short_k_major ? i / width : i % kShortLines;
    const int k = kByLine && args.short_k_major ? i % width : i / kShortLines;
    const bool valid = line < args.short_lines && (!kByLine || k < count);
    const int64_t from = args.short_k_major ? line * args.product.k + first_k + k
                                            : (first_k + k) * args.short_lines + line;
    CopyFloatAsync(SharedAddress(staged + (kByLine ? line * kLinePitch + k : i)),
                   short_side + (valid ? from : 0), valid);
  }
  WaitForAllAsync();
}

// OffsetOfSum returns the place in shared memory of the sum of two lines. The order is that of C,
// so that neighbouring threads store neighbours.
__device__ inline int OffsetOfSum(const ThinArgs& args, int lines_of_block, int line,
                                  int short_line) {
  return args.long_is_a ? line * args.short_lines + short_line : short_line * lines_of_block + line;
}

// StoreSums adds the sums of the blocks that share k, and stores them. The blocks of a cluster read
// each other's sums in shared memory. Each block adds some of the elements, always in the order of
// k. If k is also split over clusters, ReduceSplits adds the sums that they store.
// Requires: all threads of the cluster call it. The sums need no barrier before.
__device__ inline void StoreSums(const ThinArgs& args, const ThinBlock& block, int lines_of_block,
                                 const float* sums) {
  const SgemmArgs& product = args.product;
  const int blocks = ClusterBlocks(), rank = ClusterRank();
  const unsigned splits = args.parts / blocks, split = block.part / blocks;
  const int64_t elements = product.m * product.n;
  const int64_t batch_offset = block.batch_index * elements;
  WaitForCluster();
  for (int i = rank * kThinThreads + threadIdx.x; i < lines_of_block * args.short_lines;
       i += blocks * kThinThreads) {
    const int line = args.long_is_a ? i / args.short_lines : i % lines_of_block;
    if (block.first_line + line >= args.long_lines) continue;
    float sum = 0.0f;
    for (int r = 0; r < blocks; ++r) sum += LoadFromBlock(&sums[i], r);
    const int64_t offset = args.long_is_a
                               ? block.first_line * args.short_lines + i
                               : i / lines_of_block * args.long_lines + block.first_line + line;
    if (splits > 1) {
      product.partial[split * args.batch_count * elements + batch_offset + offset] = sum;
    } else {
      const int64_t at = batch_offset + offset;
      product.out[at] = LinearCombinationAt(product.alpha, sum, product.beta, product.c + at);
    }
  }
  if (blocks > 1) WaitForCluster();  // other blocks may still read these sums
}

}  // namespace jaxkernels
