// What a launch is given: pointers and sizes, as a plain value.
#ifndef JAXKERNELS_SGEMM_ARGS_H_
#define JAXKERNELS_SGEMM_ARGS_H_

#include <cstdint>

#include "sgemm/problem.h"

namespace jaxkernels {

// Which tiles of C are made, of those of 128 x 128: [member][tile_m][tile_n], those that are not 0.
// Of a member of which more than `most` are marked all tiles are made.
struct TileMarks {
  const uint32_t* marks;  // null: all tiles are made
  const uint32_t* count;  // of marked tiles, of each member
  uint32_t most;
};

// Passed to kernels by value.
struct SgemmArgs {
  const float* a;
  const float* b;
  const float* c;  // read only where beta != 0; may be `out`
  float* out;
  float* partial;  // scratch: sums of the splits of k, [split][batch][m][n], or split operands
  int64_t m, n, k;
  int64_t pitch_a, pitch_b;      // elements from one stored row to the next; pipelined only
  int64_t members_a, members_b;  // matrices of an operand in memory; for the TMA
  int batch_dims;
  BatchDim batch[kMaxBatchDims];
  float alpha, beta;
  bool aligned_a;  // stored rows of A begin at multiples of 16 bytes; not of the pipelined rung
  bool aligned_b;
  // So do rows of C, of the result and of the sums of the splits; `tensor`: at 8; `thin`: and packs
  // are to be stored.
  bool aligned_c;
  TileMarks made;
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_ARGS_H_
