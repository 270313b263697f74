// The row operations on the CPU: the door between the handlers and the vectorised loops.
//
// Owns: the entry point, and how threads may share a row. Must not know: XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_KERNELS_H_
#define JAXKERNELS_ROWS_CPU_KERNELS_H_

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "rows/call.h"

namespace jaxkernels {

// A row is added up in segments, whose sums meet in order. They follow from its length alone: so do
// its bits, whoever computes which segment. All have this many columns; the last one has the rest
// too.
inline constexpr int64_t kLeastSegmentCols = 16384;
inline constexpr int64_t kMostSegments = 256;
inline int64_t SegmentCols(int64_t cols) {
  const int64_t times = cols / (kMostSegments * kLeastSegmentCols) + 1;
  return times * kLeastSegmentCols;
}
inline int64_t SegmentCount(int64_t cols) { return std::max<int64_t>(1, cols / SegmentCols(cols)); }

// What a row takes. A thread that has all of a row makes all steps of it. Threads that share rows
// make one after the other, each on some segments.
enum class RowStep { kMax, kSums, kResults, kAll };

// Unused ones are what they are.
struct SegmentStatistics {
  double max, sum[5], lost[2];
  double labelled;  // the element at the label, if the segment has it
  bool sees;        // whether a mask and scores leave it anything
};

struct RowRange {
  int64_t begin, end;  // rows; segments of all rows, one row after the other, if threads share them
  RowStep step = RowStep::kAll;
  SegmentStatistics* segments = nullptr;  // of all rows, if threads share them
  void* room = nullptr;                   // RoomToShare bytes, if threads share rows
};

// Whether threads can share a row of this call: one of several segments, which no band narrows. Not
// measured: more than two threads, several rows.
// EPYC (Zen 4), two cores, 2026-11, us a call of one masked row of 1048576 scores, shared and not:
// f32 forward 557, 1052; f32 grad 754, 1380; bf16 forward 564, 885; bf16 grad 576, 1165
bool MayShareRows(const RowCall& call);

// Bytes for what shared rows of scores become, in the compute type, and for their results.
int64_t RoomToShare(const RowCall& call);

// The first step of rows that threads share; the last one is kResults.
RowStep FirstStep(Operation operation, DType dtype);

// Computes a range in the calling thread. Every row gives the same bits whichever rows stand around
// it.
void RunRows(const RowCall& call, const RowRange& range);

// The same for one storage type. Each is compiled in a file of its own, kernels_<dtype>.cc, so
// that they compile side by side.
template <DType kDType>
void RunRowsOf(const RowCall& call, const RowRange& range);

// The same for all storage types, on x86-64 machines that have no AVX2.
void RunRowsOfBaseline(const RowCall& call, const RowRange& range);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_KERNELS_H_
