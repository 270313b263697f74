// Row-blocked SIMD for rows of a few vectors: a group of kLanes rows, with the lanes of a vector
// along the row. The horizontal sums of the kLanes rows are computed together.
//
// Owns: the loops over a group and its horizontal reductions. row_steps.h and row_ops.h have the
// arithmetic. Must not know: the operations, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_COMPANY_ROWS_H_
#define JAXKERNELS_ROWS_CPU_COMPANY_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/ceil_div.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_groups.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Rows up to this length use row-blocked SIMD.
//
// EPYC (Zen 4), one core, 2026-11, ns per element: row-blocked (before kFewVectors), one row at a
// time, and the faster of transposed rows or eight interleaved rows (the former code); 33, 64, 128
// and 512 columns.
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
#ifdef JK_BASELINE
  return 0;
#endif
  if (Op::kInputs == 1 || !std::is_same_v<typename Op::Storage, typename Op::C>) {
    return kMostCompanyCols;
  }
  return std::is_same_v<typename Op::Storage, double> ? 0 : 192;
}
template <typename Op>
inline constexpr int64_t kCompanyCols = CompanyCols<Op>();

// Rows of 2 to kFewVectors vectors have unrolled code for each number of vectors: their sums stay
// in registers, and their terms lie in a buffer, each vector in one cache line. A limit of 5 would
// also cover 65 to 80 columns (f32 softmax of 65: 0.69 becomes 0.54), but would add a tenth to the
// code size of all CPU kernels.
//
// EPYC (Zen 4), one core, 2026-11, ns per element, looped and unrolled; 17, 33, 47 and 64 columns:
// f32 softmax: 1.32, 0.97; 0.89, 0.69; 0.63, 0.49; 0.50, 0.46
// f32 grad: 0.54, 0.43; 0.34, 0.28; 0.25, 0.21; 0.21, 0.21
// bf16 softmax: 1.28, 1.00; 0.85, 0.72; 0.64, 0.54; 0.55, 0.49
// bf16 grad: 0.64, 0.50; 0.46, 0.39; 0.38, 0.32; 0.32, 0.28
// f64 softmax: 2.84, 2.25; 1.92, 1.64; 1.36, 1.18; 1.15, 1.11
//
// Xeon (AVX-512, AMX), f32 log-softmax of 47, 64, 197 and 400 columns, before and after it got
// fixed-shift terms (NearTerm) and counted the maxima in float32: 0.78, 0.76; 0.71, 0.65; 0.70,
// 0.51; 0.66, 0.45
inline constexpr int kFewVectors = 4;

// Number of lanes to which a vector is folded before the group is transposed. Only float32, whose
// sums are double, can afford the rounding errors of folding twice.
inline constexpr int64_t kFoldedMaxima = kLanes / 4;
template <typename T>
inline constexpr int64_t kFoldedSums = std::is_same_v<T, float> ? kLanes / 4 : kLanes / 2;

// Folds the lanes of a vector to kFolded lanes; `join` combines two lanes.
template <int64_t kFolded, typename C, typename Join>
JK_INLINE void Fold(C (&lanes)[kLanes], C* to, Join join) {
  for (int64_t half = kLanes / 2; half > kFolded; half /= 2) {
#pragma omp simd
    for (int64_t l = 0; l < half; ++l) lanes[l] = join(lanes[l], lanes[l + half]);
  }
#pragma omp simd
  for (int64_t l = 0; l < kFolded; ++l) to[l] = join(lanes[l], lanes[l + kFolded]);
}

// to[column][row] = from[row][column], for kLanes rows of kFolded columns
template <int64_t kFolded, typename C>
JK_INLINE void FoldedColumns(const C* from, C* to) {
  alignas(64) C half_way[kLanes * kFolded];
  Interleave(from, kLanes / 4 * kFolded, half_way);
  Interleave(half_way, kLanes / 4 * kFolded, to);
}

// Computes the maxima of `count` rows, which have `whole` elements in whole vectors and less than a
// vector more.
template <typename C>
JK_INLINE void MaximaOf(const C* x, int64_t cols, int64_t whole, int64_t count, C* max) {
  constexpr int64_t kFolded = kFoldedMaxima;
  const auto larger = [](C a, C b) JK_INLINE_LAMBDA { return a > b ? a : b; };
  alignas(64) C folded[kLanes * kFolded], columns[kLanes * kFolded];
  std::fill(folded + count * kFolded, folded + kLanes * kFolded, -kInf<C>);
  for (int64_t r = 0; r < count; ++r, x += cols) {
    C most[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) most[l] = x[cols - kLanes + l];
    for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) most[l] = larger(most[l], x[i + l]);
    }
    Fold<kFolded>(most, folded + r * kFolded, larger);
  }
  FoldedColumns<kFolded>(folded, columns);
  for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>;
  for (int64_t i = 0; i < kLanes * kFolded; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = larger(columns[i + r], max[r]);
  }
}

// Accumulators of a row, one per lane, for its first or second sum.
template <typename Op, bool kIsSecond>
using LaneSums =
    std::conditional_t<kIsSecond, typename Op::SecondSum, CpuSumType<typename Op::Storage>>[kLanes];

// Adds kLanes terms except the first `skip`. Stores all of them in `terms` if the operation keeps
// its term.
template <typename Op, bool kNear, bool kSkip>
JK_INLINE void AddVector(const typename Op::C* first, const typename Op::C* second, int64_t skip,
                         typename Op::C max, typename Op::C near_reference, typename Op::C* terms,
                         LaneSums<Op, false>& sums, LaneSums<Op, true>& second_sums) {
  using C = typename Op::C;
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    const C other = Op::kInputs == 2 ? second[l] : C(0);
    C term;
    if constexpr (kNear) {
      term = Op::NearTerm(first[l], near_reference);
    } else {
      term = Op::Term(first[l], other, max);
    }
    if constexpr (Op::kSums == 2) {
      const C second_term = Op::SecondTerm(term, other, kNear ? first[l] == max : term == C(1));
      second_sums[l] += kSkip && l < skip ? C(0) : second_term;
    }
    sums[l] += kSkip && l < skip ? C(0) : term;
    if constexpr (Op::kKeepsTerm) terms[l] = term;
  }
}

// Adds the folded sums of each row.
template <typename Op, typename Sum>
JK_INLINE void AddFolded(const Sum* folded, double (&total)[kLanes], double (&lost)[kLanes]) {
  constexpr int64_t kFolded = kFoldedSums<typename Op::Storage>;
  alignas(64) Sum columns[kLanes * kFolded];
  FoldedColumns<kFolded>(folded, columns);
  for (int64_t i = 0; i < kLanes * kFolded; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      if constexpr (std::is_same_v<typename Op::Storage, double>) {
        lost[r] += SumError(total[r], columns[i + r]);
      }
      total[r] += columns[i + r];
    }
  }
}

// Computes kLanes results; `terms` are the kept terms.
template <typename Op>
JK_INLINE void FinishVector(const typename Op::C* first, const typename Op::C* second,
                            const typename Op::C* terms, const typename Op::Row& row,
                            typename Op::C* result) {
  using C = typename Op::C;
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    if constexpr (Op::kKeepsTerm) {
      result[l] = Op::FinishTerm(terms[l], Op::kInputs == 2 ? second[l] : C(0), row);
    } else {
      result[l] = Op::Finish(first[l], Op::kInputs == 2 ? second[l] : C(0), row);
    }
  }
}

// Processes `count` rows of kLanes to kCompanyCols elements. A row has kVectors vectors and the
// last one is the remainder; kVectors = 0 allows any number. The remainder is computed as the last
// kLanes elements of the row. It comes before the whole vectors, because results of half types
// overwrite the widened inputs.
template <typename Op, int kVectors>
JK_INLINE void RunCompanyGroup(const Inputs<Op>& in, int64_t cols, const RowEnds<Op>& ends,
                               int64_t index, int64_t count, typename Op::Storage* out) {
  using C = typename Op::C;
  using T = typename Op::Storage;
  constexpr int64_t kFolded = kFoldedSums<T>;
  constexpr int64_t kMostCols = kVectors > 0 ? kVectors * kLanes : kCompanyCols<Op>;
  constexpr int64_t kMostElements = std::is_same_v<T, C> ? 1 : kLanes * kMostCols;
  constexpr int64_t kKept = kVectors > 0 ? kVectors * kLanes : kLanes;  // terms of a row
  alignas(64) C first_wide[kMostElements], second_wide[kMostElements];
  alignas(64) C kept[kLanes * kKept];
  const int64_t whole = kVectors > 0 ? (kVectors - 1) * kLanes : cols / kLanes * kLanes;
  const int64_t tail = cols - kLanes;
  const bool has_rest = kVectors > 0 || whole < cols;
  const C* first = Load(in.first, count * cols, first_wide);
  const C* second = Op::kInputs == 2 ? Load(in.second, count * cols, second_wide) : nullptr;
  C* const results = ResultBuffer(out, first_wide);
  const auto second_at = [&](int64_t i) { return Op::kInputs == 2 ? second + i : nullptr; };
  // Pointers to the terms of row r: those of its last kLanes elements, and those from element i on.
  const auto last_terms = [&](int64_t r) JK_INLINE_LAMBDA { return kept + r * kKept; };
  const auto terms_at = [&](int64_t r, int64_t i) JK_INLINE_LAMBDA -> C* {
    if constexpr (!Op::kKeepsTerm) return nullptr;
    return kVectors > 0 ? last_terms(r) + kLanes + i : results + r * cols + i;
  };

  C max[kLanes], sum[kLanes], extra[kLanes];
  if constexpr (Op::kUsesMax) {
    MaximaOf(first, cols, whole, count, max);
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = Op::Reference(max[r]);
  } else {
    for (int64_t r = 0; r < kLanes; ++r) max[r] = 0;
  }
  C near_reference[kLanes], of_max[kLanes];  // of_max: the term of the maximum
  for (int64_t r = 0; r < kLanes; ++r) of_max[r] = 1;
  if constexpr (Op::kHasNear) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      near_reference[r] = Op::NearReference(max[r]);
      of_max[r] = IsNear(max[r]) ? Op::NearTerm(max[r], near_reference[r]) : C(1);
    }
  }
  alignas(64) CpuSumType<T> folded[kLanes * kFolded];
  alignas(64) typename Op::SecondSum second_folded[kLanes * kFolded];
  std::fill(folded + count * kFolded, folded + kLanes * kFolded, 0);
  std::fill(second_folded + count * kFolded, second_folded + kLanes * kFolded, 0);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t start = r * cols;
    const auto add = [&](auto is_near, C reference) JK_INLINE_LAMBDA {
      constexpr bool kNear = decltype(is_near)::value;
      const auto plus = [](auto a, auto b) JK_INLINE_LAMBDA { return a + b; };
      LaneSums<Op, false> sums;
      LaneSums<Op, true> second_sums;
      for (int64_t l = 0; l < kLanes; ++l) sums[l] = 0, second_sums[l] = 0;
      if (has_rest) {
        AddVector<Op, kNear, true>(first + start + tail, second_at(start + tail), whole - tail,
                                   max[r], reference, last_terms(r), sums, second_sums);
      }
      for (int64_t i = 0; i < whole; i += kLanes) {
        AddVector<Op, kNear, false>(first + start + i, second_at(start + i), 0, max[r], reference,
                                    terms_at(r, i), sums, second_sums);
      }
      Fold<kFolded>(sums, folded + r * kFolded, plus);
      if constexpr (Op::kSums == 2) Fold<kFolded>(second_sums, second_folded + r * kFolded, plus);
    };
    if constexpr (Op::kHasNear) {
      if (IsNear(max[r])) {
        add(std::true_type{}, near_reference[r]);
        continue;
      }
    }
    add(std::false_type{}, C(0));
  }
  double total[Op::kSums][kLanes] = {}, lost[Op::kSums][kLanes] = {};
  AddFolded<Op>(folded, total[0], lost[0]);
  if constexpr (Op::kSums == 2) AddFolded<Op>(second_folded, total[1], lost[1]);
  if constexpr (Op::kHasNear) {
    for (int64_t r = 0; r < kLanes; ++r) total[0][r] = Op::FarSum(total[0][r], of_max[r]);
  }
  MakeRows(total, lost, ends, index, count, max, sum, extra);

  if constexpr (Op::kStoresElements) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t start = r * cols;
      const typename Op::Row row = {max[r], sum[r], extra[r]};
      C rest[kLanes];
      if (has_rest) {
        FinishVector<Op>(first + start + tail, second_at(start + tail), last_terms(r), row, rest);
      }
      for (int64_t i = 0; i < whole; i += kLanes) {
        FinishVector<Op>(first + start + i, second_at(start + i), terms_at(r, i), row,
                         results + start + i);
      }
      if (has_rest) std::copy_n(rest, kLanes, results + start + tail);
    }
    Flush(results, count * cols, out);
  }
}

template <typename Op, int kVectors>
JK_INLINE void RunCompanyOf(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                            const RowEnds<Op>& ends, typename Op::Storage* out) {
  for (int64_t row = range.begin; row < range.end; row += kLanes) {
    const int64_t count = std::min(kLanes, range.end - row);
    typename Op::Storage* const to = Op::kStoresElements ? out + row * cols : nullptr;
    RunCompanyGroup<Op, kVectors>(in.At(row * cols), cols, ends, row, count, to);
  }
}

// Dispatches on the number of vectors of a row, from kVectors downwards.
template <typename Op, int kVectors = kFewVectors>
JK_INLINE void RunCompany(const Inputs<Op>& in, int64_t cols, const RowRange& range,
                          const RowEnds<Op>& ends, typename Op::Storage* out) {
  if constexpr (kVectors > 1) {
    if (CeilDiv(cols, kLanes) == kVectors) {
      return OnThisMachine<RunCompanyOf<Op, kVectors>>(in, cols, range, ends, out);
    }
    RunCompany<Op, kVectors - 1>(in, cols, range, ends, out);
  } else {
    OnThisMachine<RunCompanyOf<Op, 0>>(in, cols, range, ends, out);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_COMPANY_ROWS_H_
