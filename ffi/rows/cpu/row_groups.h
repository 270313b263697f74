// Groups of kLanes rows whose numbers stand side by side: row r in lane r.
//
// Owns: how rows become columns and columns rows, how the sums of a group become the constants of
// its rows. Must not know: how rows are walked, which operation does what, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_GROUPS_H_
#define JAXKERNELS_ROWS_CPU_ROW_GROUPS_H_

#include <cstdint>

#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// The quarters of 4 * `quarter` elements, interleaved.
template <typename C>
JK_INLINE void Interleave(const C* __restrict from, int64_t quarter, C* __restrict to) {
  for (int64_t i = 0; i < quarter; ++i) {
    to[4 * i] = from[i];
    to[4 * i + 1] = from[quarter + i];
    to[4 * i + 2] = from[2 * quarter + i];
    to[4 * i + 3] = from[3 * quarter + i];
  }
}

// The inverse.
template <typename C>
JK_INLINE void Deinterleave(const C* __restrict from, int64_t quarter, C* __restrict to) {
  for (int64_t i = 0; i < quarter; ++i) {
    to[i] = from[4 * i];
    to[quarter + i] = from[4 * i + 1];
    to[2 * quarter + i] = from[4 * i + 2];
    to[3 * quarter + i] = from[4 * i + 3];
  }
}

// A group of 16 rows becomes columns when its quarters are interleaved twice: then rows 0, 4, 8 and
// 12 are neighbours in their columns, then all. Vectors are shuffled faster than elements gathered.
// f32 softmax of 47 columns, ns per element: gathered 0.57, halves interleaved 0.49, quarters 0.42
static_assert(kLanes == 16);

// Sums of a group, and what their roundings lost. (All are arrays of their own: in a struct the
// compiler leaves them in memory, and short rows take twice as long.)
template <typename Op>
using GroupSums = double[Op::kSums][kLanes];

// From the maxima and sums of a group to the constants of its rows; `count` of them, from `index`
// on, are rows of the array.
template <typename Op, typename C = typename Op::C>
JK_INLINE void MakeRows(const GroupSums<Op>& total, const GroupSums<Op>& lost,
                        const RowEnds<Op>& ends, int64_t index, int64_t count, C (&max)[kLanes],
                        C (&sum)[kLanes], C (&extra)[kLanes]) {
  C taken[kLanes] = {};
  if constexpr (Op::kTakes > 0) {
    for (int64_t r = 0; r < count; ++r) taken[r] = ends.Take(index + r);
  }
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    typename Op::Found found;
    found.max = max[r];
    for (int s = 0; s < Op::kSums; ++s) found.sum[s] = Corrected(total[s][r], lost[s][r]);
    typename Op::Row row;
    if constexpr (Op::kTakes > 0) {
      row = Op::MakeRow(found, taken[r]);
    } else {
      row = Op::MakeRow(found);
    }
    max[r] = row.max, sum[r] = row.sum, extra[r] = row.extra;
  }
  if constexpr (!Op::kStoresElements) {
    for (int64_t r = 0; r < count; ++r) {
      ends.Store(index + r, Op::Result({max[r], sum[r], extra[r]}));
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_GROUPS_H_
