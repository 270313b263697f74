// Loops over rows of logits on the CPU: groups of rows, whose statistics are computed together, and
// segments of long rows. narrow_logits.h handles short rows.
//
// Owns: the grouping of rows and segments. cross_entropy_steps.h and cross_entropy_ops.h have the
// arithmetic. Must not know: XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_
#define JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rows/cpu/cross_entropy_ops.h"
#include "rows/cpu/cross_entropy_steps.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/narrow_logits.h"

namespace jaxkernels {

// Terms of a group of rows: few enough to stay in the cache; those of half types are on the stack.
inline constexpr int64_t kKeptLogits = 8192;
// Stores the gradient of segments [begin, end) of row `row`, whose statistics are `segments`.
// `terms` are the kept terms of the row, or null.
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

// Pointer to the terms of row `r` of a group; null if terms are not kept.
template <typename Op>
JK_INLINE typename Op::C* TermsOf(const LogitCall<Op>& on, int64_t row, int64_t r,
                                  typename Op::C* kept) {
  if constexpr (!Op::kStoresElements) {
    return nullptr;
  } else if constexpr (std::is_same_v<typename Op::Storage, typename Op::C>) {
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

// Processes the rows of a range, or one of two steps of one segment of a row that threads share.
template <typename Op>
JK_INLINE void RunWideLogits(const RowCall& call, const RowRange& range) {
  using C = typename Op::C;
  const LogitCall<Op> on = {call};
  const int64_t cols = on.cols, segment_count = SegmentCount(cols);
  const bool is_shared = range.step != RowStep::kAll;
  const int64_t most = std::max<int64_t>(1, kKeptLogits / std::max<int64_t>(1, cols));
  const int64_t at_once = is_shared ? 1 : std::min(most, kLanes);
  [[maybe_unused]] C kept[std::is_same_v<typename Op::Storage, C> ? 1 : kKeptLogits];
  SegmentStatistics own[kMostSegments];  // of one long row, or of several rows of one segment each
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
    OnThisMachine<RunNarrowLogits<Op>>(call, range.begin, range.end);
  } else {
    OnThisMachine<RunWideLogits<Op>>(call, range);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_
