// How the CPU walks rows of a few vectors: kLanes rows at a time, lanes along the row. What the
// vectors of a row come to is brought to one number for the rows of a group together.
//
// Owns: which elements of a group come together. What is done with them: row_steps.h, row_ops.h.
// Must not know: which operation does what, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_COMPANY_ROWS_H_
#define JAXKERNELS_ROWS_CPU_COMPANY_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rows/cpu/kernels.h"
#include "rows/cpu/row_groups.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Rows up to this length are computed in company.
//
// EPYC (Zen 4), one core, 2026-11, ns per element, this way, one row after the other, and the
// faster of lanes of their own or eight rows in turns, as it was; 33, 64, 128 and 512 columns:
// f32 softmax: 0.96, 1.66, 0.68; 0.56, 0.75, 0.65; 0.45, 0.58, 0.60; 0.39, 0.41, 0.43
// f32 grad: 0.36, 0.68, 0.55; 0.21, 0.32, 0.35; 0.18, 0.25, 0.26; 0.20, 0.19, 0.23
// bf16 softmax: 0.88, 2.72, 0.81; 0.55, 1.11, 0.76; 0.48, 0.80, 0.73; 0.46, 0.53, 0.54
// bf16 grad: 0.46, 1.67, 0.69; 0.32, 0.71, 0.59; 0.28, 0.48, 0.44; 0.35, 0.38, 0.39
// f64 softmax: 1.98, 2.58, 2.46; 1.21, 1.42, 1.36; 1.11, 1.27, 1.19; 1.04, 1.11, 1.12
// f64 grad: 0.58, 0.58, 0.76; 0.38, 0.34, 0.44; 0.43, 0.32, 0.36; 0.42, 0.33, 0.43
// AVX2, f32 grad of 192 and 512 columns: 0.21, 0.23; 0.22, 0.18
inline constexpr int64_t kMostCompanyCols = 512;
template <typename Op>
constexpr int64_t CompanyCols() {
  if (Op::kInputs == 1 || !std::is_same_v<typename Op::Storage, typename Op::C>) {
    return kMostCompanyCols;
  }
  return std::is_same_v<typename Op::Storage, double> ? 0 : 192;
}
template <typename Op>
inline constexpr int64_t kCompanyCols = CompanyCols<Op>();

// A vector is folded once before the rows of a group become columns.
inline constexpr int64_t kFolded = kLanes / 2;

// to[column][row] = from[row][column], for kLanes rows of kFolded columns
template <typename C>
JK_INLINE void FoldedColumns(const C* from, C* to) {
  alignas(64) C half_way[kLanes * kFolded];
  Interleave(from, kLanes / 4 * kFolded, half_way);
  Interleave(half_way, kLanes / 4 * kFolded, to);
}

// The maxima of `count` rows.
template <typename C>
JK_INLINE void MaximaOf(const C* x, int64_t cols, int64_t count, C* max) {
  alignas(64) C folded[kLanes * kFolded], columns[kLanes * kFolded];
  std::fill(folded + count * kFolded, folded + kLanes * kFolded, -kInf<C>);
  for (int64_t r = 0; r < count; ++r, x += cols) {
    C most[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) most[l] = x[cols - kLanes + l];
    for (int64_t i = 0; i + kLanes <= cols; i += kLanes) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) most[l] = most[l] > x[i + l] ? most[l] : x[i + l];
    }
#pragma omp simd
    for (int64_t l = 0; l < kFolded; ++l) {
      folded[r * kFolded + l] = most[l] > most[l + kFolded] ? most[l] : most[l + kFolded];
    }
  }
  FoldedColumns(folded, columns);
  for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>;
  for (int64_t i = 0; i < kLanes * kFolded; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = columns[i + r] > max[r] ? columns[i + r] : max[r];
  }
}

// What the lanes of a row have summed.
template <typename Op>
using LaneSums = CpuSumType<typename Op::Storage>[Op::kSums][kLanes];

// Adds kLanes terms without the first `skip`; all are also kept in `terms` if the operation keeps
// its term.
template <typename Op, bool kNear, bool kSkip>
JK_INLINE void AddVector(const typename Op::C* first, const typename Op::C* second, int64_t skip,
                         typename Op::C max, typename Op::C* terms, LaneSums<Op>& sums) {
  using C = typename Op::C;
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    const C other = Op::kInputs == 2 ? second[l] : C(0);
    C term;
    if constexpr (kNear) {
      term = Op::NearTerm(first[l], max);
    } else {
      term = Op::Term(first[l], other, max);
    }
    if constexpr (Op::kSums == 2) {
      const C second_term = Op::SecondTerm(term, other);
      sums[1][l] += kSkip && l < skip ? C(0) : second_term;
    }
    sums[0][l] += kSkip && l < skip ? C(0) : term;
    if constexpr (Op::kKeepsTerm) terms[l] = term;
  }
}

// kLanes results. `terms`: kept ones.
template <typename Op>
JK_INLINE void FinishVector(const typename Op::C* first, const typename Op::C* second,
                            const typename Op::C* terms, const typename Op::Row& row,
                            typename Op::C* result) {
  using C = typename Op::C;
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    if constexpr (Op::kKeepsTerm) {
      result[l] = Op::FinishTerm(terms[l], row);
    } else {
      result[l] = Op::Finish(first[l], Op::kInputs == 2 ? second[l] : C(0), row);
    }
  }
}

// `count` rows of kLanes to kCompanyCols elements. What is left of a row behind its whole
// vectors is computed with its last kLanes elements, before them, because results of half types
// replace the widened inputs.
template <typename Op>
JK_INLINE void RunCompanyGroup(const Inputs<Op>& in, int64_t cols, const RowEnds<Op>& ends,
                               int64_t index, int64_t count, typename Op::Storage* out) {
  using C = typename Op::C;
  using T = typename Op::Storage;
  constexpr int64_t kMostElements = std::is_same_v<T, C> ? 1 : kLanes * kCompanyCols<Op>;
  alignas(64) C first_wide[kMostElements], second_wide[kMostElements];
  alignas(64) C last_terms[kLanes * kLanes];
  const int64_t whole = cols / kLanes * kLanes, tail = cols - kLanes;
  const C* first = Load(in.first, count * cols, first_wide);
  const C* second = Op::kInputs == 2 ? Load(in.second, count * cols, second_wide) : nullptr;
  C* const results = ResultBuffer(out, first_wide);
  const auto second_at = [&](int64_t i) { return Op::kInputs == 2 ? second + i : nullptr; };

  C max[kLanes], sum[kLanes], extra[kLanes];
  if constexpr (Op::kUsesMax) {
    MaximaOf(first, cols, count, max);
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = Op::Reference(max[r]);
  } else {
    for (int64_t r = 0; r < kLanes; ++r) max[r] = 0;
  }
  alignas(64) CpuSumType<T> folded[Op::kSums][kLanes * kFolded];
  for (int s = 0; s < Op::kSums; ++s) {
    std::fill(folded[s] + count * kFolded, folded[s] + kLanes * kFolded, 0);
  }
  for (int64_t r = 0; r < count; ++r) {
    const int64_t start = r * cols;
    const auto add = [&](auto is_near, C reference) JK_INLINE_LAMBDA {
      constexpr bool kNear = decltype(is_near)::value;
      LaneSums<Op> sums;
      for (int s = 0; s < Op::kSums; ++s) {
        for (int64_t l = 0; l < kLanes; ++l) sums[s][l] = 0;
      }
      if (whole < cols) {
        AddVector<Op, kNear, true>(first + start + tail, second_at(start + tail), whole - tail,
                                   reference, last_terms + r * kLanes, sums);
      }
      for (int64_t i = start; i < start + whole; i += kLanes) {
        AddVector<Op, kNear, false>(first + i, second_at(i), 0, reference,
                                    Op::kKeepsTerm ? results + i : nullptr, sums);
      }
      for (int s = 0; s < Op::kSums; ++s) {
#pragma omp simd
        for (int64_t l = 0; l < kFolded; ++l) {
          folded[s][r * kFolded + l] = sums[s][l] + sums[s][l + kFolded];
        }
      }
    };
    if constexpr (Op::kHasNear) {
      if (IsNear(max[r])) {
        add(std::true_type{}, Op::NearReference(max[r]));
        continue;
      }
    }
    add(std::false_type{}, max[r]);
  }
  double total[Op::kSums][kLanes] = {}, lost[Op::kSums][kLanes] = {};
  for (int s = 0; s < Op::kSums; ++s) {
    alignas(64) CpuSumType<T> columns[kLanes * kFolded];
    FoldedColumns(folded[s], columns);
    for (int64_t i = 0; i < kLanes * kFolded; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) {
        if constexpr (std::is_same_v<T, double>)
          lost[s][r] += SumError(total[s][r], columns[i + r]);
        total[s][r] += columns[i + r];
      }
    }
  }
  MakeRows(total, lost, ends, index, count, max, sum, extra);

  if constexpr (Op::kStoresElements) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t start = r * cols;
      const typename Op::Row row = {max[r], sum[r], extra[r]};
      C rest[kLanes];
      if (whole < cols) {
        FinishVector<Op>(first + start + tail, second_at(start + tail), last_terms + r * kLanes,
                         row, rest);
      }
      for (int64_t i = start; i < start + whole; i += kLanes) {
        FinishVector<Op>(first + i, second_at(i), results + i, row, results + i);
      }
      if (whole < cols) std::copy_n(rest, kLanes, results + start + tail);
    }
    Flush(results, count * cols, out);
  }
}

template <typename Op>
JK_MULTIVERSION void RunCompany(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                                const RowEnds<Op>& ends, typename Op::Storage* out) {
  for (int64_t row = range.begin; row < range.end; row += kLanes) {
    const int64_t count = std::min(kLanes, range.end - row);
    typename Op::Storage* const to = Op::kStoresElements ? out + row * cols : nullptr;
    RunCompanyGroup<Op>(in.At(row * cols), cols, ends, row, count, to);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_COMPANY_ROWS_H_
