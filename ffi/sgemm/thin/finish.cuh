// Adds the sums of the blocks that share k, and stores them.
//
// Work split: the blocks of a cluster read each other's sums in shared memory. Each block adds some
// of the elements, always in the order of k. If k is also split over clusters, ReduceSplits adds
// the sums that they store.
#ifndef JAXKERNELS_SGEMM_THIN_FINISH_CUH_
#define JAXKERNELS_SGEMM_THIN_FINISH_CUH_

#include <cstdint>

#include "core/cluster.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/thin/args.cuh"

namespace jaxkernels {

// PlaceOfSum returns the place in shared memory of the sum of two lines. The order is that of C, so
// that neighbouring threads store neighbours.
__device__ inline int PlaceOfSum(const ThinArgs& args, int lines_of_block, int line, int few) {
  return args.many_is_a ? line * args.few + few : few * lines_of_block + line;
}

// Requires: all threads of the cluster call StoreSums. The sums need no barrier before.
__device__ inline void StoreSums(const ThinArgs& args, const ThinBlock& block, int lines_of_block,
                                 const float* sums) {
  const SgemmArgs& product = args.product;
  const int blocks = ClusterBlocks(), rank = ClusterRank();
  const unsigned splits = args.parts / blocks, split = block.part / blocks;
  const int64_t elements = product.m * product.n;
  const int64_t offset_of_member = block.member * elements;
  WaitForCluster();
  for (int i = rank * kThinThreads + threadIdx.x; i < lines_of_block * args.few;
       i += blocks * kThinThreads) {
    const int line = args.many_is_a ? i / args.few : i % lines_of_block;
    if (block.first_line + line >= args.many) continue;
    float sum = 0.0f;
    for (int r = 0; r < blocks; ++r) sum += LoadFromBlock(&sums[i], r);
    const int64_t offset = args.many_is_a
                               ? block.first_line * args.few + i
                               : i / lines_of_block * args.many + block.first_line + line;
    if (splits > 1) {
      product.partial[split * args.members * elements + offset_of_member + offset] = sum;
    } else {
      const int64_t at = offset_of_member + offset;
      product.out[at] = CombineWith(product.alpha, sum, product.beta, product.c + at);
    }
  }
  if (blocks > 1) WaitForCluster();  // other blocks may still read these sums
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_FINISH_CUH_
