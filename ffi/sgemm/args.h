// What a launch is given: pointers and sizes, as a plain value.
#ifndef JAXKERNELS_SGEMM_ARGS_H_
#define JAXKERNELS_SGEMM_ARGS_H_

#include <cstdint>

#include "sgemm/problem.h"

namespace jaxkernels {

// Passed to kernels by value.
struct SgemmArgs {
  const float* a;
  const float* b;
  const float* c;  // read only where beta != 0; may be `out`
  float* out;
  float* partial;  // sums of the splits of k, [split][batch][m][n]; split-k only
  int64_t m, n, k;
  int64_t pitch_a, pitch_b;      // elements from one stored row to the next; pipelined only
  int64_t members_a, members_b;  // matrices of an operand in memory; for the TMA
  int batch_dims;
  BatchDim batch[kMaxBatchDims];
  float alpha, beta;
  bool quads_c;    // C, the result and the sums of the splits begin at multiples of 16 bytes
  bool aligned_c;  // so do all of their rows
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_ARGS_H_
