// The layout of the scratch of the rung `tensor`: split operands, and facts about their lines.
//
// Owns: the sizes of tiles, and the offsets in the scratch. Must not know: CUDA, plans.
//
// An operand becomes packed tiles, in the order [matrix][tile of lines][step of k]. A packed tile
// is a stage of one operand in shared memory: the high parts of 128 lines x 64 k, then the low
// parts, in the layout of mainloop.cuh. A line is a row of op(A) or a column of op(B). Elements
// beyond the operand are zero.
#pragma once

#include <cstdint>

#include "core/ceil_div.h"
#include "sgemm/problem.h"

namespace jaxkernels {

inline constexpr int kTensorLines = 128;  // of a tile of C, on both sides: BM, BN
inline constexpr int kTensorStepK = 64;   // BK
inline constexpr int kTensorLineBytes = kTensorStepK * 2;
inline constexpr int kPackedHalfBytes = kTensorLines * kTensorLineBytes;
inline constexpr int kPackedTileBytes = 2 * kPackedHalfBytes;
inline constexpr int kTensorStages = 3;
inline constexpr int kSplitThreads = 256;  // of a block that splits operands

// Limit of k: the sums of 64 k each are added one after the other. Simulated relF by the number of
// normal terms: 4096 1.4e-7, 16384 2.8e-7, 65536 5.5e-7, 200000 1.0e-6. FFMA sums parts of 2816
// separately.
inline constexpr int64_t kTensorMaxDepth = 65536;
inline constexpr int kTensorStageBytes = 2 * kPackedTileBytes;  // a packed tile of A, one of B

inline constexpr int kTensorSmemBytes = kTensorStages * kTensorStageBytes + 1024;
inline constexpr int kTensorThreads = 384;                     // one warpgroup copies, two multiply
inline constexpr int kTensorThreadM = 2, kTensorThreadN = 32;  // sums of a thread that multiplies

// Elements of a warp's 16 x 128 sums that are repaired singly. With more of them the whole tile is
// recomputed.
inline constexpr int kMaxRepairsOfWarp = 8;
inline constexpr int kWarpsOfTensorTile = 8;
inline constexpr int kTensorTileBytes = kTensorLines * kTensorLines * 4;  // of sums

// Offsets in bytes from the start of the scratch, all of them multiples of 1024.
struct OperandScratch {
  int64_t packed;
  int64_t factors;       // two float32 a line
  int64_t maxima;        // uint32 a line, zero at first
  int64_t norms;         // uint32 a line, zero at first
  int64_t inexact;       // uint32 a line, zero at first
  int64_t tile_inexact;  // uint32 a tile of lines, zero at first
};

struct TensorScratch {
  int64_t tiles_m, tiles_n, steps;
  int64_t tiles;  // of C, over all batch members
  OperandScratch a, b;
  int64_t parts;         // sums of a tile for every split of k; empty without split-k
  int64_t repairs;       // two uint32 each
  int64_t flags;         // uint32 a tile of C, zero at first
  int64_t flagged;       // uint32 a batch member: its flagged tiles, zero at first
  int64_t repair_count;  // uint32, zero at first
  int64_t zeroed;        // start of the bytes that are zeroed before a product
  int64_t bytes;
};

inline TensorScratch MakeTensorScratch(int64_t m, int64_t n, int64_t k, const Batch& batch,
                                       int64_t split_k) {
  TensorScratch scratch = {};
  scratch.tiles_m = CeilDiv(m, kTensorLines);
  scratch.tiles_n = CeilDiv(n, kTensorLines);
  scratch.steps = CeilDiv(k, kTensorStepK);
  scratch.tiles = batch.Count() * scratch.tiles_m * scratch.tiles_n;
  const auto take = [&](int64_t bytes) {
    const int64_t place = scratch.bytes;
    scratch.bytes += CeilDiv(bytes, 1024) * 1024;
    return place;
  };
  const auto take_split = [&](OperandScratch& operand, int64_t lines) {
    operand.packed = take(lines / kTensorLines * scratch.steps * kPackedTileBytes);
    operand.factors = take(lines * 8);
  };
  const auto take_zeroed = [&](OperandScratch& operand, int64_t lines) {
    operand.maxima = take(lines * 4);
    operand.norms = take(lines * 4);
    operand.inexact = take(lines * 4);
    operand.tile_inexact = take(lines / kTensorLines * 4);
  };
  const int64_t lines_a = batch.MatricesOf(&BatchDim::stride_a) * scratch.tiles_m * kTensorLines;
  const int64_t lines_b = batch.MatricesOf(&BatchDim::stride_b) * scratch.tiles_n * kTensorLines;
  take_split(scratch.a, lines_a);
  take_split(scratch.b, lines_b);
  scratch.parts = take(split_k > 1 ? scratch.tiles * split_k * kTensorTileBytes : 0);
  scratch.repairs = take(scratch.tiles * kMaxRepairsOfWarp * kWarpsOfTensorTile * 8);
  scratch.zeroed = scratch.bytes;
  take_zeroed(scratch.a, lines_a);
  take_zeroed(scratch.b, lines_b);
  scratch.flags = take(scratch.tiles * 4);
  scratch.flagged = take(batch.Count() * 4);
  scratch.repair_count = take(4);
  return scratch;
}

}  // namespace jaxkernels
