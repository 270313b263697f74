// Loops over short rows of logits on the CPU: kLanes transposed rows at a time, one per lane.
//
// Owns: which rows are short, and their steps. narrow_rows.h transposes rows; cross_entropy_ops.h
// computes losses and gradients from the statistics. Must not know: XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_NARROW_LOGITS_H_
#define JAXKERNELS_ROWS_CPU_NARROW_LOGITS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rows/cpu/cross_entropy_ops.h"
#include "rows/cpu/narrow_rows.h"

namespace jaxkernels {

// Rows up to this length are transposed: kLanes at a time, one per lane.
//
// Xeon (AVX-512), one core, 2026-11-24, ns per element, transposed and with lanes along the row:
// f32 loss: 16 columns 0.66, 2.96; 105: 0.44, 1.32; 128: 0.40, 0.64; 200: 0.40, 0.65
// f32 and gradient: 16: 1.12, 4.01; 105: 0.85, 1.99; 128: 0.67, 0.81; 256: 0.70, 0.60
// f32 gradient alone: 16: 0.97, 0.90; 64: 0.63, 0.44
// bf16 loss: 16: 0.68, 4.68; 105: 0.49, 1.17; 128: 0.46, 0.58; 200: 0.46, 0.72
// AVX2, f32 loss: 128: 0.75, 0.74; 200: 0.71, 0.85; 256: 0.70, 0.61
template <typename Op>
constexpr int64_t NarrowLogits() {
  if (Op::kSums == 0) return 47;
  return Op::kStoresElements ? 199 : 255;
}
template <typename Op>
inline constexpr int64_t kNarrowLogits = NarrowLogits<Op>();

// Computes the statistics of kLanes transposed rows, relative to `max`. Overwrites elements with
// terms if kKeep. kNear and kFar: whether any row has fixed-shift (near) or ordinary (far) terms;
// `near` says which rows.
template <typename Op, bool kNear, bool kFar, bool kAll, bool kKeep>
JK_INLINE void AddColumns(typename Op::C* x, int64_t cols, const typename Op::C* max,
                          const int* near, LogitRows* rows) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  constexpr int kSums = kAll ? 3 : 1;  // without the counts
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
        const C is_seen = x[i + r] == -kInf<C> ? C(0) : C(1);
        add(1, r, term * (difference < kLeast ? kLeast : difference));
        add(2, r, is_seen * kTotalScale * (difference < kLowest ? kLowest : difference));
        seen[r] += is_seen;
        if constexpr (kKeep) term += (is_seen - 1) * -kHiddenTerm;
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
  // The kind of a row's terms depends on that row alone.
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

// Overwrites the terms or elements of kLanes transposed rows with their gradients.
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
        const C others = x[i + r] == -kInf<C> ? C(0) : constant[r];
        x[i + r] = term * (factor[r] + slope[r] * difference) + others;
      } else {
        x[i + r] = GradientOfTerm(x[i + r], factor[r], constant[r]);
      }
    }
  }
}

template <typename Op>
JK_INLINE void RunNarrowLogits(const RowCall& call, int64_t begin, int64_t end) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const LogitCall<Op> on = {call};
  const int64_t cols = on.cols, size = kLanes * cols;
  for (int64_t first = begin; first < end; first += kLanes) {
    // The last group is padded with rows of zeros.
    T padded[kLanes * kNarrowLogits<Op>];
    alignas(64) C columns[kLanes * kNarrowLogits<Op>];
    const int64_t count = std::min(kLanes, end - first);
    const T* from = on.x + first * cols;
    T* to = Op::kStoresElements ? on.out + first * cols : nullptr;
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

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_NARROW_LOGITS_H_
