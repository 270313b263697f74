// Loops over rows on the CPU: groups of rows of at least a vector here, with the lanes of a vector
// along the row; short rows in narrow_rows.h.
//
// Owns: the choice between these, the remainder of a row, the order of segments and steps, and the
// parts of an operation. row_steps.h has the arithmetic. Must not know: the operations, XLA,
// threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_
#define JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/ceil_div.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/narrow_rows.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Elements of a group of rows: those of half types are widened once, and keep their terms, if a row
// is no longer than this. Few enough to stay in the cache.
inline constexpr int64_t kGroupElements = 8192;

// Number of lanes to which a vector is folded before the group is transposed. float64 cannot afford
// the rounding errors of folding twice.
template <typename T>
inline constexpr int64_t kFolded = std::is_same_v<T, double> ? kLanes / 2 : kLanes / 4;

// Folds the lanes of a vector to kTo lanes; `join` combines two lanes.
template <int64_t kTo, typename V, typename Join>
JK_INLINE void Fold(V (&lanes)[kLanes], V* to, Join join) {
  for (int64_t half = kLanes / 2; half > kTo; half /= 2) {
#pragma omp simd
    for (int64_t l = 0; l < half; ++l) lanes[l] = join(lanes[l], lanes[l + half]);
  }
#pragma omp simd
  for (int64_t l = 0; l < kTo; ++l) to[l] = join(lanes[l], lanes[l + kTo]);
}

// to[column][row] = from[row][column], for kLanes rows of kFrom columns
template <int64_t kFrom, typename V>
JK_INLINE void FoldedColumns(const V* from, V* to) {
  alignas(64) V half_way[kLanes * kFrom];
  Interleave(from, kLanes / 4 * kFrom, half_way);
  Interleave(half_way, kLanes / 4 * kFrom, to);
}

// Columns of a segment: whole vectors from `first` on, and a remainder of `rest` elements.
struct Bounds {
  int64_t first, whole_end, rest;
};
// kVectors > 0: a row has that many vectors, and the last one is the remainder.
template <int kVectors>
JK_INLINE Bounds BoundsOf(int64_t cols, int64_t segment) {
  constexpr int64_t kWhole = (kVectors - 1) * kLanes;
  if constexpr (kVectors > 0) {
    if (cols <= kWhole || cols > kWhole + kLanes) __builtin_unreachable();
    return {0, kWhole, cols - kWhole};
  }
  const int64_t first = segment * SegmentCols(cols);
  const int64_t end = segment + 1 == SegmentCount(cols) ? cols : first + SegmentCols(cols);
  const int64_t whole_end = first + (end - first) / kLanes * kLanes;
  return {first, whole_end, end - whole_end};
}

// Calls body(begin, n) for the tiles of whole vectors, or once for all of them.
template <bool kTiled, typename C, typename Body>
JK_INLINE void ForTiles(const Bounds& of, Body body) {
  if constexpr (!kTiled) {
    body(of.first, of.whole_end - of.first);
  } else {
    for (int64_t i = of.first; i < of.whole_end; i += kTile<C>) {
      body(i, std::min(kTile<C>, of.whole_end - i));
    }
  }
}

// The arrays of a group of rows in the compute type: terms and results replace elements. Half types
// are widened into buffers at once if kLoaded, else tile by tile, without keeping terms.
template <typename Op, bool kLoaded>
struct GroupArrays {
  using T = typename Op::Storage;
  using C = typename Op::C;
  static constexpr bool kIsHalf = !std::is_same_v<T, C>, kTiled = kIsHalf && !kLoaded;
  static constexpr int64_t kTileBuffer = kTiled ? kTile<C> : kLanes;
  const T* in[2];
  T* out;
  C* wide[2];
  RowColumn column;

  // n elements of an input.
  JK_INLINE const C* Load(int input, int64_t at, int64_t n, C* buffer) const {
    if constexpr (!kIsHalf) {
      return in[input] + at;
    } else if constexpr (kLoaded) {
      return wide[input] + at;
    } else {
      return jaxkernels::Load(in[input] + at, n, buffer);
    }
  }
  JK_INLINE const C* LoadSecond(int64_t at, int64_t n, C* buffer) const {
    return Op::kInputs == 2 ? Load(1, at, n, buffer) : nullptr;
  }
  // n numbers of the column.
  JK_INLINE const C* LoadColumn(int64_t at, int64_t n, C* buffer) const {
    return Op::kTakesColumn ? jaxkernels::LoadColumn<T>(column, at, n, buffer) : nullptr;
  }
  // Terms or results.
  JK_INLINE C* Results(int64_t at, C* buffer) const {
    if constexpr (!kIsHalf) {
      return out + at;
    } else {
      return kLoaded ? wide[0] + at : buffer;
    }
  }
  JK_INLINE void Store(const C* results, int64_t n, int64_t at) const {
    if constexpr (kTiled) Flush(results, n, out + at);
  }
};

// Computes the maxima of `count` rows in a segment.
template <typename Op, typename Arrays, typename C = typename Op::C>
JK_INLINE void AddMaxima(const Arrays& on, int64_t cols, int64_t count, const Bounds& of, C* max) {
  constexpr int64_t kTo = kLanes / 4;
  const auto larger = [](C a, C b) JK_INLINE_LAMBDA { return a > b ? a : b; };
  alignas(64) C folded[kLanes * kTo], columns[kLanes * kTo], buffer[Arrays::kTileBuffer];
  std::fill(folded + count * kTo, folded + kLanes * kTo, -kInf<C>);
  for (int64_t r = 0; r < count; ++r) {
    C most[kLanes];
    const int64_t last_at = of.rest > 0 ? (r + 1) * cols - kLanes : r * cols + of.first;
    const C* const last = on.Load(0, last_at, kLanes, buffer);
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) most[l] = larger(last[l], -kInf<C>);  // ignores NaN
    ForTiles<Arrays::kTiled, C>(of, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
      const C* const x = on.Load(0, r * cols + i, n, buffer);
      for (int64_t j = 0; j < n; j += kLanes) {
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) most[l] = larger(x[j + l], most[l]);
      }
    });
    Fold<kTo>(most, folded + r * kTo, larger);
  }
  FoldedColumns<kTo>(folded, columns);
  for (int64_t i = 0; i < kLanes * kTo; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = larger(columns[i + r], max[r]);
  }
}

// Adds the terms of a row that begins at `at`, and folds each of its sums to kFolded numbers.
template <typename Op, bool kNear, typename Arrays, typename C = typename Op::C>
JK_INLINE void AddRow(const Arrays& on, int64_t at, int64_t cols, const Bounds& of, C max, C power,
                      bool keeps, double (*folded)[kLanes * kFolded<typename Op::Storage>],
                      int64_t to) {
  using T = typename Op::Storage;
  using Sum = CpuSumType<T>;
  alignas(64) C first_buffer[Arrays::kTileBuffer], second_buffer[Arrays::kTileBuffer];
  alignas(64) C column_buffer[Arrays::kTileBuffer];
  alignas(64) C last[kLanes], maxima[kLanes], powers[kLanes];
  Broadcast(max, maxima), Broadcast(power, powers);
  double total[Op::kTermSums][kLanes] = {};
  C counts[2][kLanes] = {};
  constexpr int64_t kTo = kFolded<T>;
  Sum sums[Op::kTermSums][kLanes] = {};  // of a tile
  const bool is_one_tile = std::is_same_v<T, float> || of.whole_end - of.first <= kTile<C>;
  const int64_t tail = at + cols - kLanes;
  if (of.rest > 0) {
    AddVector<Op, kNear, !kNear, true>(
        on.Load(0, tail, kLanes, first_buffer), on.LoadSecond(tail, kLanes, second_buffer),
        on.LoadColumn(cols - kLanes, kLanes, column_buffer), kLanes - of.rest, maxima, powers,
        nullptr, last, sums, kNotExact, counts);
  }
  ForTiles<!std::is_same_v<T, float>, C>(of, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    const C* const x = on.Load(0, at + i, n, first_buffer);
    const C* const other = on.LoadSecond(at + i, n, second_buffer);
    const C* const column = on.LoadColumn(i, n, column_buffer);
    C unused[kLanes];
    C* const terms = keeps ? on.Results(at + i, nullptr) : unused;
    const int64_t step = keeps ? 1 : 0;
    for (int64_t j = 0; j < n; j += kLanes) {
      AddVector<Op, kNear, !kNear, false>(x + j, other + j, column + j, 0, maxima, powers, nullptr,
                                          terms + step * j, sums, kNotExact, counts);
    }
    if (is_one_tile) return;
    AddCounts<Op>(counts, sums);
    for (int s = 0; s < Op::kTermSums; ++s) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) total[s][l] += sums[s][l], sums[s][l] = 0;
    }
  });
  if (keeps && of.rest > 0) std::copy_n(last, kLanes, on.Results(tail, nullptr));
  const auto fold = [&](auto& from) JK_INLINE_LAMBDA {
    for (int s = 0; s < Op::kTermSums; ++s) {
      std::decay_t<decltype(from[0][0])> few[kTo];
      Fold<kTo>(from[s], few, [](auto a, auto b) JK_INLINE_LAMBDA { return a + b; });
      for (int64_t l = 0; l < kTo; ++l) folded[s][to * kTo + l] = few[l];
    }
  };
  if (is_one_tile) {
    AddCounts<Op>(counts, sums);
    fold(sums);
  } else {
    fold(total);
  }
}

// Computes the sums of `count` rows in a segment.
template <typename Op, typename Arrays, typename C = typename Op::C>
JK_INLINE void AddSums(const Arrays& on, int64_t cols, int64_t count, const Bounds& of,
                       const C* max, const C* power, const int32_t* near, bool keeps,
                       GroupSums<Op>& total, GroupSums<Op>& lost) {
  using T = typename Op::Storage;
  constexpr int64_t kTo = kFolded<T>;
  alignas(64) double folded[Op::kTermSums][kLanes * kTo], columns[kLanes * kTo];
  for (int s = 0; s < Op::kTermSums; ++s) {
    std::fill(folded[s] + count * kTo, folded[s] + kLanes * kTo, 0);
  }
  for (int64_t r = 0; r < count; ++r) {
    if constexpr (Op::kHasNear) {
      if (near[r]) {
        AddRow<Op, true>(on, r * cols, cols, of, max[r], power[r], keeps, folded, r);
        continue;
      }
    }
    AddRow<Op, false>(on, r * cols, cols, of, max[r], power[r], keeps, folded, r);
  }
  for (int s = 0; s < Op::kTermSums; ++s) {
    FoldedColumns<kTo>(folded[s], columns);
    for (int64_t i = 0; i < kLanes * kTo; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) {
        if constexpr (std::is_same_v<T, double>)
          lost[s][r] += SumError(total[s][r], columns[i + r]);
        total[s][r] += columns[i + r];
      }
    }
  }
}

// Stores the results of a row.
template <typename Op, bool kKeep, typename Arrays, typename C = typename Op::C>
JK_INLINE void FinishRow(const Arrays& on, int64_t at, int64_t cols, const Bounds& of,
                         const GroupConstants<C>& row) {
  alignas(64) C first_buffer[Arrays::kTileBuffer], second_buffer[Arrays::kTileBuffer], last[kLanes];
  alignas(64) C column_buffer[Arrays::kTileBuffer];
  const auto first_at = [&](int64_t i, int64_t n) JK_INLINE_LAMBDA -> const C* {
    return kKeep ? on.Results(i, nullptr) : on.Load(0, i, n, first_buffer);
  };
  const int64_t tail = at + cols - kLanes;
  if (of.rest > 0) {
    FinishVector<Op, kKeep>(first_at(tail, kLanes), on.LoadSecond(tail, kLanes, second_buffer),
                            on.LoadColumn(cols - kLanes, kLanes, column_buffer), row, last);
  }
  ForTiles<Arrays::kTiled, C>(of, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    const C* const x = first_at(at + i, n);
    const C* const other = on.LoadSecond(at + i, n, second_buffer);
    const C* const column = on.LoadColumn(i, n, column_buffer);
    C* const results = on.Results(at + i, first_buffer);
    for (int64_t j = 0; j < n; j += kLanes) {
      FinishVector<Op, kKeep>(x + j, other + j, column + j, row, results + j);
    }
    on.Store(results, n, at + i);
  });
  if (of.rest > 0) {
    C* const results = on.Results(tail, first_buffer);
    std::copy_n(last, kLanes, results);
    on.Store(results, kLanes, tail);
  }
}

// Processes rows of at least kLanes elements in groups, or one step of one segment of a row that
// threads share. The remainder of a row is computed as its last kLanes elements, before the whole
// vectors, because terms and results may overwrite elements.
template <typename Op, int kVectors, bool kLoaded = true>
JK_INLINE void RunWide(const RowCall& call, const RowRange& range) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  constexpr bool kIsHalf = !std::is_same_v<T, C>, kWidens = kIsHalf && kLoaded;
  const int64_t cols = call.arrays.cols, size = SegmentCols(cols);
  const int64_t segments = kVectors > 0 ? 1 : SegmentCount(cols);
  const bool is_shared = kVectors == 0 && range.step != RowStep::kAll;
  const bool keeps = kKeeps<Op> && (!kIsHalf || kLoaded) && call.part == Part::kWhole;
  const int64_t most = kGroupElements * 4 / (Op::kInputs * sizeof(C) * cols);
  const int64_t at_once = is_shared ? 1 : std::clamp<int64_t>(most, 1, kLanes);
  alignas(64) C first_wide[kWidens ? kGroupElements : 1];
  alignas(64) C second_wide[kWidens && Op::kInputs == 2 ? kGroupElements : 1];
  alignas(64) C column_wide[kWidens && Op::kTakesColumn ? kGroupElements : 1];
  RowColumn column = call.column;
  if constexpr (kWidens && Op::kTakesColumn) {
    column = {LoadColumn<T>(call.column, 0, cols, column_wide), true};
  }
  const auto makes = [&](RowStep step) { return !is_shared || range.step == step; };
  for (int64_t at = range.begin; at < range.end; at += at_once) {
    const int64_t row = is_shared ? at / segments : at, count = std::min(at_once, range.end - at);
    const int64_t begin = is_shared ? at % segments : 0, end = is_shared ? begin + 1 : segments;
    const int64_t end_col = end == segments ? cols : end * size;
    SegmentStatistics* const shared = is_shared ? range.segments + row * segments : nullptr;
    GroupArrays<Op, kLoaded> on = {};
    on.column = column;
    for (int k = 0; k < Op::kInputs; ++k) {
      on.in[k] = static_cast<const T*>(call.arrays.in[k]) + row * cols;
      on.wide[k] = k == 0 ? first_wide : second_wide;
      if constexpr (kWidens) Load(on.in[k], count * cols, on.wide[k]);
    }
    if (Op::kStoresElements && call.arrays.out != nullptr) {
      on.out = static_cast<T*>(call.arrays.out) + row * cols;
    }

    C max[kLanes], found_max[kLanes], power[kLanes], of_max[kLanes], labelled[kLanes] = {};
    int32_t near[kLanes];
    GroupSums<Op> total = {}, lost = {};
    std::fill_n(max, kLanes, -kInf<C>);
    const bool reduces = call.part != Part::kFinish;
    if (!reduces) {
      LoadStatistics<Op>(call, row, count, max, total);
    } else if constexpr (Op::kUsesMax) {
      if (makes(RowStep::kMax)) {
        if constexpr (Op::kTakesLabel) {
          FindLabelled<T>(call, row, count, begin * size, end_col, labelled);
        }
        for (int64_t s = begin; s < end; ++s) {
          AddMaxima<Op>(on, cols, count, BoundsOf<kVectors>(cols, s), max);
        }
        if (is_shared) {
          shared[begin].max = max[0], shared[begin].labelled = labelled[0];
          continue;
        }
      } else {
        for (int64_t s = 0; s < segments; ++s) {
          max[0] = std::max(static_cast<C>(shared[s].max), max[0]);
          labelled[0] += shared[s].labelled;
        }
      }
    }
    std::copy_n(max, kLanes, found_max);
    MakeShifts<Op>(call.part, max, power, of_max, near);

    if constexpr (Op::kTermSums > 0) {
      constexpr int kCount = Op::kTermSums;
      const bool adds = makes(RowStep::kSums), is_long = segments > 1;
      double sum[kCount] = {}, error[kCount] = {};  // of a row of several segments
      for (int64_t s = adds ? begin : 0; reduces && s < (adds ? end : segments); ++s) {
        const Bounds of = BoundsOf<kVectors>(cols, s);
        if (is_long) {
          std::fill_n(total[0], kCount * kLanes, 0), std::fill_n(lost[0], kCount * kLanes, 0);
        }
        if (adds) AddSums<Op>(on, cols, count, of, max, power, near, keeps, total, lost);
        for (int k = 0; is_long && k < kCount; ++k) {
          if (is_shared && adds) shared[s].sum[k] = total[k][0], shared[s].lost[k] = lost[k][0];
          if (!adds) total[k][0] = shared[s].sum[k], lost[k][0] = shared[s].lost[k];
          error[k] += SumError(sum[k], total[k][0]) + lost[k][0];
          sum[k] += total[k][0];
        }
      }
      for (int k = 0; reduces && is_long && k < kCount; ++k) {
        total[k][0] = sum[k], lost[k][0] = error[k];
      }
    }
    if (range.step == RowStep::kSums) continue;
    if (call.part == Part::kStatistics) {
      StoreStatistics<Op>(call, row, count, found_max, total, lost);
      continue;
    }
    GroupConstants<C> constants;
    if (!Op::kStoresElements && end < segments) continue;
    MakeRows<Op>(call, row, count, max, of_max, total, lost, labelled, end == segments, constants);
    if constexpr (Op::kStoresElements) {
      for (int64_t s = begin; s < end; ++s) {
        for (int64_t r = 0; r < count; ++r) {
          GroupConstants<C> of;
          for (int k = 0; k < (Op::kTakesLabel ? kRowConstants : 3); ++k) {
            Broadcast(constants[k][r], of[k]);
          }
          if constexpr (kKeeps<Op>) {
            if (keeps) {
              FinishRow<Op, true>(on, r * cols, cols, BoundsOf<kVectors>(cols, s), of);
              continue;
            }
          }
          FinishRow<Op, false>(on, r * cols, cols, BoundsOf<kVectors>(cols, s), of);
        }
      }
      if constexpr (kWidens) Flush(first_wide, count * cols, on.out);
      StoreExceptions<Op>(call, row, count, begin * size, end_col, constants);
    }
  }
}

// Processes a range of rows with the driver for their length. `in_company`: whether the range can
// have many rows, so that short ones are transposed.
template <typename Op>
JK_INLINE void RunRange(const RowCall& call, const RowRange& range, bool in_company = true) {
  const int64_t cols = call.arrays.cols;
  if (cols < kLanes || (in_company && cols <= kNarrowCols<Op>)) {
    OnThisMachine<RunNarrow<Op>>(call, range);
  } else {
#ifndef JK_BASELINE
    // Rows of two to four vectors have unrolled code: their sums stay in registers. float64 gains
    // up to 14 percent from it, which is not worth the time to compile it.
    // EPYC (Zen 5), softmax, ns per element, looped and unrolled; 33, 48, 64 columns (2026-11):
    // f32 0.88, 0.49; 0.60, 0.35; 0.53, 0.32
    // bf16 0.57, 0.49; 0.42, 0.34; 0.37, 0.33
    // f64 1.24, 1.14; 0.83, 0.78; 0.79, 0.78
    if constexpr (!Op::kTakesLabel && !std::is_same_v<typename Op::Storage, double>) {
      switch (CeilDiv(cols, kLanes)) {
        case 2:
          return OnThisMachine<RunWide<Op, 2>>(call, range);
        case 3:
          return OnThisMachine<RunWide<Op, 3>>(call, range);
        case 4:
          return OnThisMachine<RunWide<Op, 4>>(call, range);
      }
    }
#endif
    if constexpr (!std::is_same_v<typename Op::Storage, typename Op::C>) {
      if (cols > kGroupElements) return OnThisMachine<RunWide<Op, 0, false>>(call, range);
    }
    OnThisMachine<RunWide<Op, 0>>(call, range);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_
