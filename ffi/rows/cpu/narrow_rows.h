// Loops over short rows on the CPU: kLanes transposed rows at a time, one per lane.
//
// Owns: the transposition of rows and back, and which rows are short. row_steps.h and row_ops.h
// have the arithmetic. Must not know: the operations, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_NARROW_ROWS_H_
#define JAXKERNELS_ROWS_CPU_NARROW_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rows/cpu/kernels.h"
#include "rows/cpu/row_groups.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Rows up to this length are transposed: kLanes rows at a time, one per lane. For these lengths
// that is faster than lanes along the row (company_rows.h).
//
// EPYC (Zen 4), one core, 2026-11, ns per element, transposed and with lanes along the row:
// f32 softmax of 17, 24, 33 and 47 columns: 0.75, 0.97; 0.64, 0.69; 0.69, 0.69; 0.66, 0.49
// f32 logsumexp of the same: 0.75, 1.10; 0.64, 0.78; 0.63, 0.77; 0.60, 0.54
// f32 grad of 17 columns: 0.60, 0.43
// bf16 softmax of 20 and 23 columns: 0.78, 0.81; 0.86, 0.73
// bf16 grad of 17 columns: 0.79, 0.50
// Xeon (AVX-512, AMX), f32 log-softmax of 17, 24, 33, 40 and 47 columns: 0.90, 1.71; 0.75, 1.24;
// 0.81, 1.08; 0.73, 0.88; 0.85, 0.78; before it had fixed-shift terms, transposed, the first four:
// 1.04, 0.87, 0.96, 0.91
// AVX2, f32 softmax of 24, 28, 33 and 47 columns: 0.87, 0.90; 0.86, 0.80; 0.90, 0.88; 0.87, 0.62
//
// float64, and half types without kept terms, would be faster with lanes along the row from 23
// columns on, but less accurate. Transposed rows sum half types in double, except the second sum of
// a tangent, and correct all rounding errors of float64.
template <typename Op>
constexpr int64_t NarrowCols() {
  using T = typename Op::Storage;
  if (Op::kInputs == 2) return std::is_same_v<T, float> && Op::kUsesMax ? 23 : 15;
  if (std::is_same_v<T, float>) return Op::kKeepsTerm ? 24 : 40;
  return std::is_same_v<T, double> || !Op::kKeepsTerm ? 31 : 20;
}
template <typename Op>
inline constexpr int64_t kNarrowCols = NarrowCols<Op>();

// to[column][row] = from[row][column], for kLanes rows
template <int64_t kMostCols, typename T, typename C>
JK_INLINE void LoadColumns(const T* from, int64_t cols, C* to) {
  alignas(64) C wide[kLanes * kMostCols];
  alignas(64) C half_way[kLanes * kMostCols];
  const int64_t quarter = kLanes / 4 * cols;
  Interleave(Load(from, kLanes * cols, wide), quarter, half_way);
  Interleave(half_way, quarter, to);
}

// to[row][column] = from[column][row]
template <int64_t kMostCols, typename T, typename C>
JK_INLINE void StoreColumns(const C* from, int64_t cols, T* to) {
  alignas(64) C wide[kLanes * kMostCols];
  alignas(64) C half_way[kLanes * kMostCols];
  const int64_t quarter = kLanes / 4 * cols;
  C* rows = ResultBuffer(to, wide);
  Deinterleave(from, quarter, half_way);
  Deinterleave(half_way, quarter, rows);
  Flush(rows, kLanes * cols, to);
}

// Processes kLanes rows of at most kNarrowCols elements, one per lane. `index` is the first row;
// only `count` of them are rows of the array.
template <typename Op>
JK_INLINE void RunNarrowGroup(const Inputs<Op>& in, int64_t cols, const RowEnds<Op>& ends,
                              int64_t index, int64_t count, typename Op::Storage* out) {
  using C = typename Op::C;
  alignas(64) C first[kLanes * kNarrowCols<Op>];
  alignas(64) C second[kLanes * kNarrowCols<Op>];
  C max[kLanes], sum[kLanes], extra[kLanes];
  double total[Op::kSums][kLanes], lost[Op::kSums][kLanes];  // nearly exact, except for float64
  typename Op::SecondSum second_total[kLanes] = {};
  LoadColumns<kNarrowCols<Op>>(in.first, cols, first);
  if constexpr (Op::kInputs == 2) LoadColumns<kNarrowCols<Op>>(in.second, cols, second);

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
  const auto add = [&](auto& sums, double& lost_of_row, int64_t r, C term) JK_INLINE_LAMBDA {
    if constexpr (std::is_same_v<typename Op::Storage, double>) {
      lost_of_row += SumError(sums[r], term);
    }
    sums[r] += term;
  };
  // The kind of a row's terms depends on that row alone.
  C reference[kLanes], of_max[kLanes];  // of_max: the term of the maximum
  int near[kLanes], near_rows = 0;
  for (int64_t r = 0; r < kLanes; ++r) of_max[r] = 1;
  if constexpr (Op::kHasNear) {
    for (int64_t r = 0; r < kLanes; ++r) {
      near[r] = IsNear(max[r]);
      near_rows += near[r];
      reference[r] = Op::NearReference(max[r]);
      of_max[r] = near[r] ? Op::NearTerm(max[r], reference[r]) : C(1);
    }
  }
  const auto add_terms = [&](auto some_are_near, auto some_are_far) JK_INLINE_LAMBDA {
    constexpr bool kNear = decltype(some_are_near)::value, kFar = decltype(some_are_far)::value;
    for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) {
        const C other = Op::kInputs == 2 ? second[i + r] : C(0);
        // A near term belongs to the maximum if its element equals it; a far term does if it is 1.
        C term = 0, compared = 0, with = 1;
        if constexpr (kFar) compared = term = Op::Term(first[i + r], other, max[r]);
        if constexpr (kNear) {
          const bool is_near = !kFar || near[r];
          term = is_near ? Op::NearTerm(first[i + r], reference[r]) : term;
          compared = is_near ? first[i + r] : compared;
          with = is_near ? max[r] : with;
        }
        if constexpr (Op::kSums == 2) {
          add(second_total, lost[1][r], r, Op::SecondTerm(term, other, compared == with));
        }
        add(total[0], lost[0][r], r, term);
        if constexpr (Op::kKeepsTerm) first[i + r] = term;
      }
    }
  };
  if constexpr (Op::kHasNear) {
    if (near_rows == kLanes) {
      add_terms(std::true_type{}, std::false_type{});
    } else if (near_rows > 0) {
      add_terms(std::true_type{}, std::true_type{});
    }
  }
  if (near_rows == 0) add_terms(std::false_type{}, std::true_type{});
  if constexpr (Op::kHasNear) {
    for (int64_t r = 0; r < kLanes; ++r) total[0][r] = Op::FarSum(total[0][r], of_max[r]);
  }
  if constexpr (Op::kSums == 2) {
    for (int64_t r = 0; r < kLanes; ++r) total[1][r] = second_total[r];
  }
  MakeRows(total, lost, ends, index, count, max, sum, extra);
  if constexpr (Op::kStoresElements) {
    for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) {
        const typename Op::Row row = {max[r], sum[r], extra[r]};
        const C other = Op::kInputs == 2 ? second[i + r] : C(0);
        if constexpr (Op::kKeepsTerm) {
          first[i + r] = Op::FinishTerm(first[i + r], other, row);
        } else {
          first[i + r] = Op::Finish(first[i + r], other, row);
        }
      }
    }
    StoreColumns<kNarrowCols<Op>>(first, cols, out);
  }
}

// Copies `left` elements and pads with zeros to `size`.
template <typename T>
JK_INLINE const T* Padded(const T* from, int64_t left, int64_t size, T* to) {
  std::copy_n(from, left, to);
  std::fill(to + left, to + size, T{});
  return to;
}

template <typename Op>
JK_INLINE void RunNarrow(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                         const RowEnds<Op>& ends, typename Op::Storage* out) {
  using T = typename Op::Storage;
  constexpr int64_t kMostElements = kLanes * kNarrowCols<Op>;
  const int64_t all = range.end * cols, size = kLanes * cols;
  for (int64_t i = range.begin * cols; i < all; i += size) {
    // The last group is padded with rows of zeros. One call handles both whole and padded groups,
    // because a second call would be inlined again.
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
