// How the CPU walks short rows: kLanes of them at a time, each in its own lane.
//
// Owns: how rows become lanes and lanes rows again, and which rows are short. What is done with
// elements: row_steps.h, row_ops.h. Must not know: which operation does what, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_NARROW_ROWS_H_
#define JAXKERNELS_ROWS_CPU_NARROW_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rows/cpu/kernels.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Rows up to this length are computed kLanes at a time, one row in each lane, where that is faster
// than lanes along the row. They are even at 16 to 24 columns in float64, and at 64 in softmax.
// EPYC (Zen 5), one core, 2026-11, 33 columns, ns per element, this way and that way:
// f32 softmax: 0.67, 1.01
// bf16 softmax: 0.61, 1.92
// bf16 grad: 0.50, 1.09
// f32 grad: 0.51, 0.27
inline constexpr int64_t kMostNarrowCols = 48;
template <typename Op>
inline constexpr int64_t kNarrowCols =
    sizeof(typename Op::Storage) == 2 || (sizeof(typename Op::Storage) == 4 && Op::kInputs == 1)
        ? kMostNarrowCols
        : 15;

// to[column][row] = from[row][column], for kLanes rows
template <typename T, typename C>
JK_INLINE void LoadColumns(const T* from, int64_t cols, C* to) {
  C wide[kLanes * kMostNarrowCols];
  const C* rows = Load(from, kLanes * cols, wide);
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < kLanes; ++r) to[c * kLanes + r] = rows[r * cols + c];
  }
}

// to[row][column] = from[column][row]
template <typename T, typename C>
JK_INLINE void StoreColumns(const C* from, int64_t cols, T* to) {
  C wide[kLanes * kMostNarrowCols];
  C* rows = ResultBuffer(to, wide);
  for (int64_t r = 0; r < kLanes; ++r) {
    for (int64_t c = 0; c < cols; ++c) rows[r * cols + c] = from[c * kLanes + r];
  }
  Flush(rows, kLanes * cols, to);
}

// kLanes rows of at most kNarrowCols elements, each in its own lane.
// `index`: of the first; only `count` of them are rows of the array.
template <typename Op>
JK_INLINE void RunNarrowGroup(const Inputs<Op>& in, int64_t cols, const RowEnds<Op>& ends,
                              int64_t index, int64_t count, typename Op::Storage* out) {
  using C = typename Op::C;
  C first[kLanes * kNarrowCols<Op>], second[kLanes * kNarrowCols<Op>];
  C max[kLanes], sum[kLanes], extra[kLanes];
  CpuSumType<typename Op::Storage> total[Op::kSums][kLanes], lost[Op::kSums][kLanes];
  LoadColumns(in.first, cols, first);
  if constexpr (Op::kInputs == 2) LoadColumns(in.second, cols, second);

  for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>;
  for (int s = 0; s < Op::kSums; ++s) {
    for (int64_t r = 0; r < kLanes; ++r) total[s][r] = 0, lost[s][r] = 0;
  }
  if constexpr (Op::kUsesMax) {
    for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) max[r] = first[i + r] > max[r] ? first[i + r] : max[r];
    }
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = Op::Reference(max[r]);
  }
  const auto add = [&](int s, int64_t r, C term) JK_INLINE_LAMBDA {
    if constexpr (std::is_same_v<typename Op::Storage, double>) {
      lost[s][r] += SumError(total[s][r], term);
    }
    total[s][r] += term;
  };
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      const C other = Op::kInputs == 2 ? second[i + r] : C(0);
      C term = Op::Term(first[i + r], other, max[r]);
      if constexpr (Op::kSums == 2) add(1, r, Op::SecondTerm(term, other));
      add(0, r, term);
    }
  }
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
  } else {
    for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) {
        const typename Op::Row row = {max[r], sum[r], extra[r]};
        first[i + r] = Op::Finish(first[i + r], Op::kInputs == 2 ? second[i + r] : C(0), row);
      }
    }
    StoreColumns(first, cols, out);
  }
}

// The first `left` of `size` elements, and zeros.
template <typename T>
JK_INLINE const T* Padded(const T* from, int64_t left, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) to[i] = i < left ? from[i] : T{};
  return to;
}

template <typename Op>
JK_INLINE void RunNarrow(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                         const RowEnds<Op>& ends, typename Op::Storage* out) {
  using T = typename Op::Storage;
  constexpr int64_t kMostElements = kLanes * kNarrowCols<Op>;
  const int64_t all = range.end * cols, size = kLanes * cols;
  for (int64_t i = range.begin * cols; i < all; i += size) {
    // The last rows stand in a group with rows of zeros. One call serves whole groups and this one,
    // because each would be code of its own.
    T first[kMostElements], second[kMostElements], last[kMostElements];
    const int64_t left = all - i;
    const bool is_whole = left >= size;
    Inputs<Op> group = in.At(i);
    if (!is_whole) {
      group.first = Padded(group.first, left, size, first);
      if constexpr (Op::kInputs == 2) group.second = Padded(group.second, left, size, second);
    }
    const int64_t index = i / cols, count = std::min(kLanes, range.end - index);
    T* const to = is_whole && Op::kStoresElements ? out + i : last;
    RunNarrowGroup<Op>(group, cols, ends, index, count, to);
    if (!is_whole && Op::kStoresElements) std::copy_n(last, left, out + i);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_NARROW_ROWS_H_
