// Steps of cross entropy on the elements of a row or a segment: statistics and the gradient.
//
// Owns: the shift of the terms, and how segments are combined. Must not know: the loops over rows
// (cross_entropy_rows.h), XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_STEPS_H_
#define JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rows/cpu/cross_entropy_ops.h"

namespace jaxkernels {

JK_INLINE int64_t WholeLanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Returns n <= kTile elements in the compute type, followed by `pad` up to a whole vector.
template <typename T, typename C>
JK_INLINE const C* LoadPadded(const T* from, int64_t n, C pad, C* buffer) {
  if (std::is_same_v<T, C> && n % kLanes == 0) return Load(from, n, buffer);
  for (int64_t i = 0; i < n; ++i) buffer[i] = Widen(from[i]);
  std::fill(buffer + n, buffer + WholeLanes(n), pad);
  return buffer;
}

enum class LogitTerms { kNear, kFar, kFarAndAllSums };

// Adds a tile of n terms, a multiple of kLanes. Stores them in `terms` if kKeep.
template <typename Op, LogitTerms kTerms, bool kKeep>
JK_INLINE void AddLogits(const typename Op::C* x, int64_t n, typename Op::C max,
                         typename Op::C* terms, RunningSums<Op>& sums) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  using Sum = CpuSumType<T>;
  using Count = std::conditional_t<std::is_same_v<C, double>, int64_t, int32_t>;
  Sum rest = 0, spread = 0, total = 0;
  Count count = 0, seen = 0;
  [[maybe_unused]] C power = 0;
  if constexpr (kTerms == LogitTerms::kNear) power = PowerOf(max);
#pragma omp simd reduction(+ : rest, count, spread, total, seen)
  for (int64_t i = 0; i < n; ++i) {
    C term;
    if constexpr (kTerms == LogitTerms::kNear) {
      term = ExpTimesPower(x[i], power);
    } else {
      term = ExpDifference<T>(x[i], max);
    }
    const bool is_max = kTerms == LogitTerms::kNear ? x[i] == max : term == C(1);
    rest += is_max ? C(0) : term;
    count += is_max ? 1 : 0;
    if constexpr (kTerms == LogitTerms::kFarAndAllSums) {
      const C difference = x[i] - max;
      spread += term * std::max(difference, C(kLeastLogitExponent));
      // This is a product because GCC 12 miscompiles `total += hidden ? 0 : difference`.
      const C is_seen = x[i] == -kInf<C> ? C(0) : C(1);
      total += is_seen * kTotalScale * std::max(difference, std::numeric_limits<C>::lowest());
      seen += x[i] == -kInf<C> ? 0 : 1;
      if constexpr (kKeep) term += (is_seen - 1) * -kHiddenTerm;
    }
    if constexpr (kKeep) terms[i] = term;
  }
  const double parts[] = {double(rest), double(count), double(spread), double(total), double(seen)};
  constexpr int kCount = kTerms == LogitTerms::kFarAndAllSums ? 5 : 2;
  for (int s = 0; s < kCount; ++s) sums.template Add<true>(s, parts[s]);
}

// Computes the statistics of a segment, relative to its own maximum (-inf if all elements are).
// Stores its terms in `terms` if kKeep.
template <typename Op, bool kKeep>
JK_INLINE SegmentStatistics ReduceLogits(const typename Op::Storage* x, int64_t cols, bool all_sums,
                                         typename Op::C* terms) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  C max = -kInf<C>;
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>];
    max = MaxOf(LoadPadded(x + i, n, -kInf<C>, buffer), WholeLanes(n), max);
  });
  const C reference = LogitReference(max);
  const bool is_near = HasNearLogits<T>(max, all_sums);
  RunningSums<Op> sums;
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>], term_buffer[kTile<C>];
    const int64_t whole = WholeLanes(n);
    const C* from = LoadPadded(x + i, n, -kInf<C>, buffer);
    C* const to = !kKeep ? nullptr : n == whole ? terms + i : term_buffer;
    if (all_sums) {
      AddLogits<Op, LogitTerms::kFarAndAllSums, kKeep>(from, whole, reference, to, sums);
    } else if (std::is_same_v<T, float> && is_near) {
      if constexpr (std::is_same_v<T, float>) {
        AddLogits<Op, LogitTerms::kNear, kKeep>(from, whole, max, to, sums);
      }
    } else {
      AddLogits<Op, LogitTerms::kFar, kKeep>(from, whole, reference, to, sums);
    }
    if (kKeep && n != whole) std::copy_n(term_buffer, n, terms + i);
  });
  SegmentStatistics found = {};
  const typename Op::Found of_row = sums.Of(max);
  found.max = max;
  std::copy_n(of_row.sum, 5, found.sum);
  if (is_near) found.sum[0] *= NearFactor(max);
  return found;
}

// Combines the statistics of a row's segments.
template <typename Op>
JK_INLINE SegmentStatistics MeetingLogits(const SegmentStatistics* segments, int64_t count) {
  using C = typename Op::C;
  if (count == 1) return segments[0];
  SegmentStatistics found = {};
  found.max = -kInf<double>;
  for (int64_t s = 0; s < count; ++s) found.max = std::max(found.max, segments[s].max);
  RunningSums<Op> sums;
  for (int64_t s = 0; s < count; ++s) {
    const SegmentStatistics& of = segments[s];
    // A segment with the maximum -inf has no terms, unless it has a NaN.
    const bool has_max = of.max != -kInf<double>;
    const double difference = has_max ? of.max - found.max : 0;
    const double factor = has_max ? ExpDifference<C>(of.max, found.max) : 1;
    const double joining = of.max == found.max ? 0 : of.sum[1];
    const double spread = of.sum[2] + difference * (of.sum[0] + of.sum[1]);
    constexpr double kLowest = std::numeric_limits<double>::lowest();
    const double parts[] = {
        factor * (of.sum[0] + joining), of.sum[1] - joining, factor == 0 ? 0 : factor * spread,
        of.sum[3] + std::max(difference, kLowest) * kTotalScale * of.sum[4], of.sum[4]};
    for (int i = 0; i < 5; ++i) sums.template Add<true>(i, parts[i]);
    found.labelled += of.labelled;
  }
  for (int i = 0; i < 5; ++i) found.sum[i] = Corrected(sums.sum[i], sums.lost[i]);
  return found;
}

// Stores n <= kTile results make(element); computes whole vectors.
template <typename C, typename T, typename Make>
JK_INLINE void StoreTile(const C* from, int64_t n, T* out, Make make) {
  C buffer[kTile<C>];
  const int64_t whole = WholeLanes(n);
  C* const result = n == whole ? ResultBuffer(out, buffer) : buffer;
#pragma omp simd
  for (int64_t i = 0; i < whole; ++i) result[i] = make(from[i]);
  if (std::is_same_v<T, C> && n == whole) return;
  for (int64_t i = 0; i < n; ++i) Narrow(result[i], &out[i]);
}

// Stores the gradient of a segment, computed from its terms. `factor` includes the rescaling of the
// terms to the maximum of the row. `out` may alias `terms`.
template <typename T, typename C>
JK_INLINE void StoreGradientOfTerms(const C* terms, int64_t cols, C factor, C constant, T* out) {
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>];
    const C* from = LoadPadded(terms + i, n, C(0), buffer);
    StoreTile(from, n, out + i,
              [&](C term) JK_INLINE_LAMBDA { return GradientOfTerm(term, factor, constant); });
  });
}

// Stores the gradient of a segment, computed from its elements. Only CrossEntropyGrad has a slope.
template <typename Op>
JK_INLINE void StoreGradientOfLogits(const typename Op::Storage* x, int64_t cols,
                                     const LogitGradients& of, int64_t r,
                                     typename Op::Storage* out) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const C max = C(of.max[r]), factor = C(of.factor[r]), slope = C(of.slope[r]);
  const C constant = C(of.constant[r]);
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>];
    const C* from = LoadPadded(x + i, n, C(0), buffer);
    StoreTile(from, n, out + i, [&](C element) JK_INLINE_LAMBDA {
      const C term = ExpDifference<T>(element, max);
      const C others = element == -kInf<C> ? C(0) : constant;
      if constexpr (Op::kSums > 0) return term * factor + others;
      const C difference = std::max(element - max, C(kLeastLogitExponent));
      return term * (factor + slope * difference) + others;
    });
  });
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_STEPS_H_
