// How the CPU walks rows of logits: groups of rows, whose numbers are made side by side, and
// segments of long rows.
//
// Owns: which elements of which rows come together. What is done with them: cross_entropy_steps.h,
// cross_entropy_ops.h. Must not know: XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_
#define JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rows/cpu/cross_entropy_ops.h"
#include "rows/cpu/cross_entropy_steps.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/narrow_rows.h"

namespace jaxkernels {

// Terms of a group of rows: they stay in the cache, half types' on the stack.
inline constexpr int64_t kKeptLogits = 8192;
// Rows up to this length are computed kLanes at a time, each in its own lane.
//
// Xeon (AVX-512), one core, 2026-11-24, ns per element, so and with lanes along the row:
// f32 loss: 16 columns 0.64, 2.07; 128: 0.40, 0.64; 200: 0.38, 0.63; 376: 0.46, 0.45
// f32 and gradient: 16: 1.08, 6.65; 128: 0.66, 0.81; 256: 0.70, 0.59
// f32 gradient alone: 16: 0.91, 1.45; 64: 0.63, 0.57
// bf16 loss: 16: 0.66, 4.46; 128: 0.45, 0.58; 200: 0.45, 0.72; 376: 0.54, 0.50
// AVX2, f32 loss: 128: 0.75, 0.74; 200: 0.71, 0.85; 256: 0.70, 0.61
template <typename Op>
constexpr int64_t NarrowLogits() {
  if (Op::kSums == 0) return 47;
  return Op::kStoresElements ? 199 : 255;
}
template <typename Op>
inline constexpr int64_t kNarrowLogits = NarrowLogits<Op>();

template <typename Op>
struct LogitCall {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const RowCall& call;
  int64_t cols = call.arrays.cols;
  const T* x = static_cast<const T*>(call.arrays.in[0]);
  T* out = static_cast<T*>(call.arrays.out);
  RowEnds<Op> ends = {call.scalars_in, call.scalars_out};

  // The element at the label if it is one of columns [begin, end), else 0. To be read before
  // results are written, which may stand in the place of x.
  JK_INLINE double LabelledOf(int64_t row, int64_t begin, int64_t end) const {
    const int64_t label = call.labels == nullptr ? -1 : call.labels[row];
    return label >= begin && label < end ? double(Widen(x[row * cols + label])) : 0;
  }
  // NaN for a label beyond the row.
  JK_INLINE double Known(int64_t row, double labelled) const {
    return call.labels[row] < cols ? labelled : std::numeric_limits<double>::quiet_NaN();
  }
  // What is kept of rows.
  JK_INLINE void StoreNumbers(int64_t first, int64_t count, const LogitRows& rows) const {
    for (int64_t r = 0; r < count; ++r) {
      ends.Store(first + r, C(rows.max[r]), 0);
      for (int s = 0; s < 5; ++s) ends.Store(first + r, C(rows.sum[s][r]), 1 + s);
      ends.Store(first + r, C(rows.labelled[r]), 6);
    }
  }
  // Replaces results that follow from no formula: at the label, or everywhere. Of columns
  // [begin, end).
  JK_INLINE void StoreExceptions(int64_t row, int64_t begin, int64_t end, bool is_everywhere,
                                 double there) const {
    const int64_t label = call.labels[row];
    T value;
    Narrow(C(there), &value);
    if (is_everywhere) {
      std::fill(out + row * cols + begin, out + row * cols + end, value);
    } else if (label >= begin && label < end) {
      out[row * cols + label] = value;
    }
  }
};

template <typename Op>
JK_INLINE void MakeGradientsOf(const LogitCall<Op>& on, const LogitRows& rows, int64_t first,
                               int64_t count, LogitGradients* gradients) {
  if constexpr (Op::kSums == 0) {
    MakeGradients(on.ends, first, count, gradients);
  } else {
    MakeGradients(rows, on.ends, on.call.labels, first, count, on.cols, gradients);
  }
}

// Statistics of kLanes rows, from columns, relative to `max`; terms take the place of elements if
// kKeep. kNear and kFar: whether some rows have terms of that kind. `near` says which.
template <typename Op, bool kNear, bool kFar, bool kAll, bool kKeep>
JK_INLINE void AddColumns(typename Op::C* x, int64_t cols, const typename Op::C* max,
                          const int* near, LogitRows* rows) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  constexpr int kSums = kAll ? 3 : 1;  // but for the counts
  double sum[kSums][kLanes] = {}, lost[kSums][kLanes] = {};
  C count[kLanes] = {}, seen[kLanes] = {};
  [[maybe_unused]] C power[kLanes];
  if constexpr (kNear) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) power[r] = PowerOf(max[r]);
  }
  const auto add = [&](int s, int64_t r, C term) JK_INLINE_LAMBDA {
    if constexpr (std::is_same_v<T, double>) lost[s][r] += SumError(sum[s][r], term);
    sum[s][r] += term;
  };
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      C term = 0;
      if constexpr (kFar) term = ExpDifference<T>(x[i + r], max[r]);
      if constexpr (kNear) {
        const C of_near = ExpTimesPower(x[i + r], power[r]);
        term = !kFar || near[r] ? of_near : term;
      }
      const C is_max = x[i + r] == max[r] ? C(1) : C(0);
      add(0, r, is_max == C(0) ? term : term - term);
      count[r] += is_max;
      if constexpr (kAll) {
        constexpr C kLeast = kLeastLogitExponent, kLowest = std::numeric_limits<C>::lowest();
        const C difference = x[i + r] - max[r];
        const C is_seen = difference == -kInf<C> ? C(0) : C(1);
        add(1, r, term * (difference < kLeast ? kLeast : difference));
        add(2, r, is_seen * (difference < kLowest ? kLowest : difference));
        seen[r] += is_seen;
      }
      if constexpr (kKeep) x[i + r] = term;
    }
  }
  for (int64_t r = 0; r < kLanes; ++r) {
    const auto sum_of = [&](int s) { return s < kSums ? Corrected(sum[s][r], lost[s][r]) : 0; };
    rows->max[r] = max[r];
    rows->term_factor[r] = 1;
    rows->sum[0][r] = sum_of(0), rows->sum[1][r] = count[r];
    rows->sum[2][r] = sum_of(1), rows->sum[3][r] = sum_of(2), rows->sum[4][r] = seen[r];
  }
  if constexpr (kNear) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      const double factor = NearFactor(max[r]);
      rows->term_factor[r] = near[r] ? factor : 1;
      rows->sum[0][r] *= rows->term_factor[r];
    }
  }
}

template <typename Op, bool kKeep>
JK_INLINE void ReduceColumns(typename Op::C* x, int64_t cols, bool all_sums, LogitRows* rows) {
  using C = typename Op::C;
  C max[kLanes];
  for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>;
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = x[i + r] > max[r] ? x[i + r] : max[r];
  }
  int near[kLanes], near_rows = 0;
  for (int64_t r = 0; r < kLanes; ++r) {
    max[r] = LogitReference(max[r]);
    near[r] = HasNearLogits<typename Op::Storage>(max[r], all_sums);
    near_rows += near[r];
  }
  // Which terms a row has depends on that row alone.
  if (all_sums) {
    AddColumns<Op, false, true, true, kKeep>(x, cols, max, near, rows);
  } else if (!std::is_same_v<typename Op::Storage, float>) {
    AddColumns<Op, false, true, false, kKeep>(x, cols, max, near, rows);
  } else if constexpr (std::is_same_v<typename Op::Storage, float>) {
    if (near_rows == kLanes) {
      AddColumns<Op, true, false, false, kKeep>(x, cols, max, near, rows);
    } else {
      AddColumns<Op, true, true, false, kKeep>(x, cols, max, near, rows);
    }
  }
}

// Gradients of kLanes rows in columns, from their terms or elements, in whose place they are.
template <typename Op>
JK_INLINE void MakeGradientColumns(const LogitGradients& of, const double* term_factor,
                                   int64_t cols, typename Op::C* x) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  C max[kLanes], factor[kLanes], slope[kLanes], constant[kLanes];
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    max[r] = C(of.max[r]);
    factor[r] = C(Op::kSums == 0 ? of.factor[r] : of.factor[r] * term_factor[r]);
    slope[r] = C(of.slope[r]), constant[r] = C(of.constant[r]);
  }
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      if constexpr (Op::kSums == 0) {
        const C difference = std::max(x[i + r] - max[r], C(kLeastLogitExponent));
        const C term = ExpDifference<T>(x[i + r], max[r]);
        x[i + r] = term * (factor[r] + slope[r] * difference) + constant[r];
      } else {
        x[i + r] = x[i + r] * factor[r] + constant[r];
      }
    }
  }
}

template <typename Op>
JK_MULTIVERSION void RunNarrowLogits(const RowCall& call, int64_t begin, int64_t end) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const LogitCall<Op> on = {call};
  const int64_t cols = on.cols, size = kLanes * cols;
  for (int64_t first = begin; first < end; first += kLanes) {
    // The last rows stand in a group with rows of zeros.
    T padded[kLanes * kNarrowLogits<Op>];
    alignas(64) C columns[kLanes * kNarrowLogits<Op>];
    const int64_t count = std::min(kLanes, end - first);
    const T* from = on.x + first * cols;
    T* to = on.out + first * cols;
    if (count < kLanes) from = Padded(from, count * cols, size, padded), to = padded;
    LoadColumns<kNarrowLogits<Op>>(from, cols, columns);
    LogitRows rows = {};
    if constexpr (Op::kSums > 0) {
      ReduceColumns<Op, Op::kStoresElements>(columns, cols, call.all_sums, &rows);
      for (int64_t r = 0; r < count; ++r) {
        rows.labelled[r] = on.Known(first + r, on.LabelledOf(first + r, 0, cols));
      }
      on.StoreNumbers(first, count, rows);
    }
    if constexpr (Op::kStoresElements) {
      LogitGradients gradients;
      MakeGradientsOf(on, rows, first, count, &gradients);
      MakeGradientColumns<Op>(gradients, rows.term_factor, cols, columns);
      StoreColumns<kNarrowLogits<Op>>(columns, cols, to);
      if (count < kLanes) std::copy_n(padded, count * cols, on.out + first * cols);
      for (int64_t r = 0; r < count; ++r) {
        on.StoreExceptions(first + r, 0, cols, gradients.is_everywhere[r], gradients.there[r]);
      }
    }
  }
}

// Segments [begin, end) of row `row`, whose statistics are `segments`, become a gradient. `terms`:
// of the row, null if they are not kept.
template <typename Op>
JK_INLINE void StoreGradient(const LogitCall<Op>& on, int64_t row, int64_t begin, int64_t end,
                             const SegmentStatistics* segments, const LogitGradients& of, int64_t r,
                             const typename Op::C* terms) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const int64_t cols = on.cols, size = SegmentCols(cols), count = SegmentCount(cols);
  const T* const x = on.x + row * cols;
  T* const out = on.out + row * cols;
  const int64_t first = begin * size, last = end == count ? cols : end * size;
  if (terms == nullptr) {
    StoreGradientOfLogits<Op>(x + first, last - first, of, r, out + first);
  } else {
    for (int64_t s = begin; s < end; ++s) {
      const double max = segments[s].max;
      double factor = of.factor[r];
      if (count > 1 && max != -kInf<double>) factor *= ExpDifference<C>(max, of.max[r]);
      if (HasNearLogits<T>(max, on.call.all_sums)) factor *= NearFactor(max);
      const int64_t i = s * size, stop = s + 1 == count ? cols : i + size;
      StoreGradientOfTerms(terms + i, stop - i, C(factor), C(of.constant[r]), out + i);
    }
  }
  on.StoreExceptions(row, first, last, of.is_everywhere[r], of.there[r]);
}

// Whether terms are kept, and where those of row `r` of a group are.
template <typename Op>
JK_INLINE typename Op::C* TermsOf(const LogitCall<Op>& on, int64_t row, int64_t r,
                                  typename Op::C* kept) {
  if constexpr (std::is_same_v<typename Op::Storage, typename Op::C>) {
    return on.out + row * on.cols;
  } else {
    return on.cols <= kKeptLogits ? kept + r * on.cols : nullptr;
  }
}

template <typename Op>
JK_INLINE SegmentStatistics ReduceSegment(const LogitCall<Op>& on, int64_t row, int64_t s,
                                          typename Op::C* terms) {
  const int64_t begin = s * SegmentCols(on.cols);
  const int64_t end = s + 1 == SegmentCount(on.cols) ? on.cols : begin + SegmentCols(on.cols);
  const auto* const x = on.x + row * on.cols + begin;
  const double labelled = on.LabelledOf(row, begin, end);
  SegmentStatistics found;
  if (Op::kStoresElements && terms != nullptr) {
    found = ReduceLogits<Op, true>(x, end - begin, on.call.all_sums, terms + begin);
  } else {
    found = ReduceLogits<Op, false>(x, end - begin, on.call.all_sums, nullptr);
  }
  found.labelled = labelled;
  return found;
}

template <typename Op>
JK_INLINE void StoreStatistics(const LogitCall<Op>& on, int64_t row,
                               const SegmentStatistics& found) {
  auto* const to = static_cast<typename Op::C*>(on.call.statistics) + row * (1 + Op::kSums);
  to[0] = found.max;
  for (int s = 0; s < Op::kSums; ++s) to[1 + s] = found.sum[s];
}

// Rows of a range, or one segment of a row that threads share, in one of two steps.
template <typename Op>
JK_MULTIVERSION void RunWideLogits(const RowCall& call, const RowRange& range) {
  using C = typename Op::C;
  const LogitCall<Op> on = {call};
  const int64_t cols = on.cols, segment_count = SegmentCount(cols);
  const bool is_shared = range.step != RowStep::kAll;
  const int64_t most = std::max<int64_t>(1, kKeptLogits / std::max<int64_t>(1, cols));
  const int64_t at_once = is_shared ? 1 : std::min(most, kLanes);
  [[maybe_unused]] C kept[std::is_same_v<typename Op::Storage, C> ? 1 : kKeptLogits];
  SegmentStatistics own[kMostSegments];  // of a row in segments, or of some of one segment each
  for (int64_t i = range.begin; i < range.end; i += at_once) {
    const int64_t count = std::min(at_once, range.end - i);
    const int64_t first = is_shared ? i / segment_count : i;
    const int64_t begin = is_shared ? i % segment_count : 0;
    const int64_t end = is_shared ? begin + 1 : segment_count;
    SegmentStatistics* const segments = is_shared ? range.segments + first * segment_count : own;
    LogitRows rows = {};
    if constexpr (Op::kSums > 0) {
      if (range.step != RowStep::kResults) {
        for (int64_t r = 0; r < count; ++r) {
          C* const terms = TermsOf(on, first + r, r, kept);
          for (int64_t s = begin; s < end; ++s) {
            segments[r + s] = ReduceSegment(on, first + r, s, terms);
          }
        }
      }
      if (range.step == RowStep::kSums) continue;
      for (int64_t r = 0; r < count; ++r) {
        const SegmentStatistics found = MeetingLogits<Op>(segments + r, segment_count);
        if (call.part == Part::kStatistics) {
          StoreStatistics(on, first + r, found);
          continue;
        }
        rows.max[r] = LogitReference(found.max);
        rows.labelled[r] = on.Known(first + r, found.labelled);
        for (int s = 0; s < Op::kSums; ++s) rows.sum[s][r] = found.sum[s];
      }
      if (call.part == Part::kStatistics) continue;
      if (end == segment_count) on.StoreNumbers(first, count, rows);
    }
    if constexpr (Op::kStoresElements) {
      LogitGradients gradients;
      MakeGradientsOf(on, rows, first, count, &gradients);
      for (int64_t r = 0; r < count; ++r) {
        const C* terms = Op::kSums > 0 ? TermsOf(on, first + r, r, kept) : nullptr;
        StoreGradient(on, first + r, begin, end, segments + r, gradients, r, terms);
      }
    }
  }
}

template <typename Op>
JK_INLINE void RunCrossEntropy(const RowCall& call, const RowRange& range) {
  static_assert(MatchesTable<Op>(), "operations.h says otherwise");
  if (call.arrays.cols <= kNarrowLogits<Op> && call.part == Part::kWhole) {
    RunNarrowLogits<Op>(call, range.begin, range.end);
  } else {
    RunWideLogits<Op>(call, range);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_
