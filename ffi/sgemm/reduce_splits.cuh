// Adds the sums of the splits of k: out = alpha * (partial[0] + partial[1] + ...) + beta * C,
// always in this order.
//
// Work split: a thread adds kPack neighbouring elements of all splits. Memory: every sum is read
// once, from the L2, where the blocks of the splits have just written it.
#ifndef JAXKERNELS_SGEMM_REDUCE_SPLITS_CUH_
#define JAXKERNELS_SGEMM_REDUCE_SPLITS_CUH_

#include <cstdint>

#include "sgemm/args.h"
#include "sgemm/epilogue.cuh"

namespace jaxkernels {

inline constexpr int kReduceThreads = 128;

// `elements`: of one split; a multiple of kPack. With zero splits (k = 0) the result is beta * C.
template <int kPack>
__global__ void __launch_bounds__(kReduceThreads)
    ReduceSplits(const __grid_constant__ SgemmArgs args, int64_t elements, int splits) {
  struct alignas(kPack * sizeof(float)) Pack {
    float v[kPack];
  };
  const int64_t index = (int64_t{blockIdx.x} * kReduceThreads + threadIdx.x) * kPack;
  if (index >= elements) return;
  Pack sum = {};
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const Pack term = *reinterpret_cast<const Pack*>(args.partial + split * elements + index);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum.v[i] += term.v[i];
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    args.out[index + i] = LinearCombinationAt(args.alpha, sum.v[i], args.beta, args.c + index + i);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_REDUCE_SPLITS_CUH_
