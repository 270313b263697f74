// Kernel arguments of a product: pointers and sizes, as a plain value.
#pragma once

#include <cstdint>

#include "sgemm/problem.h"

namespace jaxkernels {

// TileSelection selects the 128 x 128 tiles of C that a launch computes. `flags` is indexed
// [batch member][tile_m][tile_n]; nonzero means compute. If a batch member has more than `most`
// flagged tiles, all its tiles are computed.
struct TileSelection {
  const uint32_t* flags;  // null: all tiles are computed
  const uint32_t* count;  // flagged tiles of each batch member
  uint32_t most;
};

struct SgemmArgs {
  const float* a;
  const float* b;
  const float* c;  // read only if beta != 0; may alias `out`
  float* out;
  float* partial;  // scratch: split-k sums [split][batch][m][n], or split operands
  int64_t m, n, k;
  int64_t pitch_a, pitch_b;        // elements from one stored row to the next; pipelined, tensor
  int64_t matrices_a, matrices_b;  // matrices of an operand in memory
  Batch batch;
  float alpha, beta;
  bool aligned_a;  // rows of A start at 16-byte boundaries; unused by pipelined
  bool aligned_b;
  // Rows of C, of the result and of the split-k sums start at 16-byte boundaries (`tensor`: 8
  // bytes). `thin`: the plan also wants packs to be stored.
  bool aligned_c;
  bool a_k_major, b_k_major;  // layout of the operand: K-major, else MN-major
  TileSelection selected;
};

}  // namespace jaxkernels
