// Row operations on the CPU: the interface between the handlers and the vectorised loops.
//
// Owns: the entry point, and how threads may share a row. Must not know: XLA, threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/numeric_cpu.h"
#include "rows/call.h"
#include "rows/operations.h"

namespace jaxkernels {

// A row is summed in segments, whose sums are combined in order. The segments depend on the row's
// length only, so the bits do not depend on which thread computes which segment. Every segment has
// SegmentCols columns; the last one also has the remainder.
inline constexpr int64_t kLeastSegmentCols = 16384;
inline constexpr int64_t kMostSegments = 256;
inline int64_t SegmentCols(int64_t cols) {
  const int64_t times = cols / (kMostSegments * kLeastSegmentCols) + 1;
  return times * kLeastSegmentCols;
}
inline int64_t SegmentCount(int64_t cols) { return std::max<int64_t>(1, cols / SegmentCols(cols)); }

// Steps of a row. A thread that owns a whole row runs all of them (kAll). Threads that share rows
// run one step at a time, each on its segments.
enum class RowStep { kMax, kSums, kResults, kAll };

// An operation sets only the fields that it uses.
struct SegmentStatistics {
  double max, sum[kLossSums], lost[kLossSums];
  double labelled;  // the element at the label, if the segment has it
  bool sees;        // whether any of its elements is visible
};

struct RowRange {
  int64_t begin, end;  // rows; or segments, counted over all rows, if threads share rows
  RowStep step = RowStep::kAll;
  SegmentStatistics* segments = nullptr;  // of all rows, if threads share rows
  void* room = nullptr;                   // RoomToShare bytes, if threads share rows
};

// Whether threads can share a row of this call: a whole operation, several segments and no band.
// Measured with two threads and one row only.
// EPYC (Zen 4), two cores, 2026-11, us a call of one masked row of 1048576 scores, shared and not:
// f32 forward 557, 1052; f32 grad 754, 1380; bf16 forward 564, 885; bf16 grad 576, 1165
bool MayShareRows(const RowCall& call);

// Whether a loss has scales or a mask.
inline bool TransformsLogits(const RowCall& call) {
  return TraitsOf(call.operation).TakesLabel() &&
         (call.scales.data != nullptr || call.masking.mask != nullptr);
}

// Number of buffers of a row in the compute type, except for attention: inputs of half types,
// transformed logits, and results of half types with a cap.
int64_t BuffersOf(const RowCall& call);

// Bytes of all buffers for shared rows, also for attention.
int64_t RoomToShare(const RowCall& call);

// The first step of rows that threads share; the last one is kResults.
RowStep FirstStep(Operation operation, DType dtype);

// Computes a range in the calling thread. A row's bits do not depend on other rows.
void RunRows(const RowCall& call, const RowRange& range);

// As RunRows, for one storage type: float, Half or double. kernels_*.cc have one each.
template <typename T>
void RunRowsOf(const RowCall& call, const RowRange& range);

// As RunRows, for all storage types, on x86-64 machines without AVX2.
void RunRowsOfBaseline(const RowCall& call, const RowRange& range);

}  // namespace jaxkernels
