// Loops over rows on the CPU: long rows here, one at a time; groups of short rows in narrow_rows.h
// and company_rows.h.
//
// Owns: the choice between these, the remainder of a row, the order of segments and steps.
// row_steps.h has the arithmetic. Must not know: the operations, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_
#define JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rows/cpu/company_rows.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/narrow_rows.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Rows of half types up to this length keep their terms on the stack; longer ones compute them
// twice.
// EPYC bf16 softmax, ns per element: kept 0.25, twice 0.36
inline constexpr int64_t kKeptTerms = 4096;

// Segments [begin, end) of a row, and the step to run on them.
struct RowSpan {
  int64_t begin, end;
  RowStep step;
  SegmentStatistics* segments;  // of the row; unused if the step is kAll

  JK_INLINE bool Makes(RowStep other) const { return step == other || step == RowStep::kAll; }
};

// Runs steps of one row of at least kLanes elements: first whole vectors, then the remainder as the
// last kLanes elements of the row, so that some are computed twice. `terms` may alias `out`. `out`
// must not alias an input, whose end is read after results are stored.
template <typename Op, bool kKeep>
JK_INLINE void RunWideRow(const Inputs<Op>& in, int64_t cols, const RowSpan& span,
                          const RowEnds<Op>& ends, int64_t index, typename Op::C* terms,
                          typename Op::Storage* out) {
  using C = typename Op::C;
  const int64_t whole = cols / kLanes * kLanes;
  const int64_t tail = cols - kLanes;
  const int64_t count = SegmentCount(cols), size = SegmentCols(cols);
  const auto end_of = [=](int64_t segment) {
    return segment + 1 == count ? whole : (segment + 1) * size;
  };
  const int64_t first = span.begin * size, stop = end_of(span.end - 1);
  const bool has_rest = whole < cols && span.end == count;
  const auto tile = [](int64_t i, int64_t end) { return std::min(end - i, kTile<C>); };
  C last_terms[kLanes];

  C max = -kInf<C>;
  if constexpr (Op::kUsesMax) {
    if (span.Makes(RowStep::kMax)) {
      C buffer[kTile<C>];
      for (int64_t i = first; i < stop; i += kTile<C>) {
        max = MaxOf(Load(in.first + i, tile(i, stop), buffer), tile(i, stop), max);
      }
      if (has_rest) max = MaxOf(Load(in.first + tail, kLanes, buffer), kLanes, max);
    } else {
      for (int64_t s = 0; s < count; ++s) max = std::max(max, static_cast<C>(span.segments[s].max));
    }
  }
  if (span.step == RowStep::kMax) {
    span.segments[span.begin].max = max;
    return;
  }
  max = Op::Reference(max);
  bool is_near = false;
  C near_reference = 0;
  if constexpr (kKeep && Op::kHasNear) {
    is_near = IsNear(max);
    near_reference = Op::NearReference(max);
  }
  const auto add = [&](int64_t i, int64_t n, auto skips, int64_t skip, C* to,
                       auto& sums) JK_INLINE_LAMBDA {
    constexpr bool kSkip = decltype(skips)::value, kExact = std::is_same_v<C, double> && !kSkip;
    if constexpr (kKeep && Op::kHasNear) {
      if (is_near) {
        return AddTerms<Op, kKeep, kSkip, kExact, true>(in.At(i), n, skip, near_reference, to,
                                                        sums);
      }
    }
    AddTerms<Op, kKeep, kSkip, kExact>(in.At(i), n, skip, max, to, sums);
  };

  RunningSums<Op> sums;
  if (span.Makes(RowStep::kSums)) {
    for (int64_t s = span.begin; s < span.end; ++s) {
      RunningSums<Op> part;
      for (int64_t i = s * size, end = end_of(s); i < end; i += kTile<C>) {
        add(i, tile(i, end), std::false_type{}, 0, kKeep ? terms + i : nullptr, part);
      }
      if (has_rest && s + 1 == count) {
        add(tail, kLanes, std::true_type{}, whole - tail, last_terms, part);
      }
      if (span.step == RowStep::kSums) {
        std::copy_n(part.sum, Op::kSums, span.segments[s].sum);
        std::copy_n(part.lost, Op::kSums, span.segments[s].lost);
      }
      sums.Merge(part.sum, part.lost);
    }
    if (kKeep && span.step == RowStep::kSums && has_rest) {
      std::copy_n(last_terms, kLanes, terms + tail);
    }
  } else {
    for (int64_t s = 0; s < count; ++s) sums.Merge(span.segments[s].sum, span.segments[s].lost);
    if (kKeep && has_rest) std::copy_n(terms + tail, kLanes, last_terms);
  }
  if (span.step == RowStep::kSums) return;

  const typename Op::Row row = RowOf(sums.Of(max), ends, index);
  if constexpr (!Op::kStoresElements) {
    if (span.end == count) ends.Store(index, Op::Result(row));
  } else {
    for (int64_t i = first; i < stop; i += kTile<C>) {
      Store<Op, kKeep>(in.At(i), tile(i, stop), row, kKeep ? terms + i : nullptr, out + i);
    }
    if (has_rest) Store<Op, kKeep>(in.At(tail), kLanes, row, last_terms, out + tail);
  }
}

template <typename Op, bool kKeep, typename TermsOf>
JK_INLINE void RunWideRows(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                           const RowEnds<Op>& ends, typename Op::Storage* out, TermsOf terms_of) {
  const int64_t count = SegmentCount(cols);
  const bool whole_rows = range.step == RowStep::kAll;
  for (int64_t at = range.begin; at < range.end; ++at) {
    const int64_t row = whole_rows ? at : at / count, first = whole_rows ? 0 : at % count;
    const RowSpan span = {first, whole_rows ? count : first + 1, range.step,
                          whole_rows ? nullptr : range.segments + row * count};
    typename Op::Storage* const to = Op::kStoresElements ? out + row * cols : nullptr;
    RunWideRow<Op, kKeep>(in.At(row * cols), cols, span, ends, row, terms_of(to), to);
  }
}

template <typename Op>
JK_INLINE void RunWide(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                       const RowEnds<Op>& ends, typename Op::Storage* out) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  if constexpr (Op::kKeepsTerm && std::is_same_v<T, C>) {
    return RunWideRows<Op, true>(in, cols, range, ends, out,
                                 [](C* to) JK_INLINE_LAMBDA { return to; });
  } else if constexpr (Op::kKeepsTerm) {
    if (cols <= kKeptTerms) {
      C terms[kKeptTerms];
      return RunWideRows<Op, true>(in, cols, range, ends, out,
                                   [&](T*) JK_INLINE_LAMBDA { return terms; });
    }
  }
  RunWideRows<Op, false>(in, cols, range, ends, out,
                         [](T*) JK_INLINE_LAMBDA -> C* { return nullptr; });
}

// Processes a range of rows with the driver for their length. `in_company`: whether the range can
// have many rows, so that short ones are grouped.
template <typename Op>
JK_INLINE void RunRange(const RowArrays& rows, const RowRange& range, const RowEnds<Op>& ends = {},
                        bool in_company = true) {
  using T = typename Op::Storage;
  const Inputs<Op> in = {static_cast<const T*>(rows.in[0]), static_cast<const T*>(rows.in[1])};
  if (rows.cols < kLanes || (in_company && rows.cols <= kNarrowCols<Op>)) {
    OnThisMachine<RunNarrow<Op>>(in, rows.cols, range, ends, static_cast<T*>(rows.out));
    return;
  }
  if constexpr (kCompanyCols<Op> > 0) {
    if (in_company && rows.cols <= kCompanyCols<Op>) {
      return RunCompany(in, rows.cols, range, ends, static_cast<T*>(rows.out));
    }
  }
  OnThisMachine<RunWide<Op>>(in, rows.cols, range, ends, static_cast<T*>(rows.out));
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_
