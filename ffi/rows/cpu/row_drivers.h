// Loops over rows on the CPU. Groups of rows of at least a vector run here, with the lanes of a
// vector along the row; narrow_rows.h has short rows.
//
// Owns: the choice between these, the remainder of a row, the order of segments and steps, and the
// parts of an operation. row_steps.h has the arithmetic. Must not know: the operations, XLA,
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <type_traits>

#include "core/ceil_div.h"
#include "core/instruction_sets.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/narrow_rows.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Maximum float32 elements of a group of several rows, all inputs together. They stay in the cache.
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

// The columns of a segment: whole vectors, and a remainder of `rest` elements.
struct Segment {
  int64_t whole, rest;

  JK_INLINE int64_t Cols() const { return whole + rest; }
};
// kVectors > 0: a row has that many vectors, and the last one is the remainder.
template <int kVectors>
JK_INLINE Segment SegmentOf(int64_t cols, int64_t index) {
  constexpr int64_t kWhole = (kVectors - 1) * kLanes;
  if constexpr (kVectors > 0) {
    if (cols <= kWhole || cols > kWhole + kLanes) __builtin_unreachable();
    return {kWhole, cols - kWhole};
  }
  const int64_t before = index * SegmentCols(cols);
  const int64_t n = index + 1 == SegmentCount(cols) ? cols - before : SegmentCols(cols);
  return {n / kLanes * kLanes, n % kLanes};
}

// A buffer of n numbers; none if n is 0.
template <typename C>
class Buffer {
 public:
  explicit Buffer(int64_t n) {
    if (n > 0) data_ = static_cast<C*>(::operator new(n * sizeof(C), kAlignment));
  }
  ~Buffer() { ::operator delete(data_, kAlignment); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  C* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  C* data_ = nullptr;
};

// The arrays of a group of rows in the compute type. Terms and results replace elements.
template <typename C>
struct GroupArrays {
  const C* in[2];
  C* out;
  const C* column;

  JK_INLINE GroupArrays From(int64_t at) const {
    return {{in[0] + at, in[1] + at}, out + at, column + at};
  }
};

// Adds to the maxima of rows. kLooks: returns whether no element is -inf, or so small that its
// difference from the maximum overflows; otherwise false.
template <bool kLooks, typename C>
JK_INLINE bool AddMaxima(const C* x, int64_t cols, int64_t count, const Segment& of, C* max) {
  constexpr int64_t kTo = kLanes / 4;
  const auto larger = [](C a, C b) JK_INLINE_LAMBDA { return a > b ? a : b; };
  alignas(64) C folded[kLanes * kTo], columns[kLanes * kTo], least[kLanes];
  Broadcast(kInf<C>, least);
  std::fill(folded + count * kTo, folded + kLanes * kTo, -kInf<C>);
  for (int64_t r = 0; r < count; ++r, x += cols) {
    C most[kLanes];
    Broadcast(-kInf<C>, most);
    const auto add = [&](const C* from) JK_INLINE_LAMBDA {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        most[l] = larger(from[l], most[l]);  // ignores NaN
        if constexpr (kLooks) least[l] = from[l] < least[l] ? from[l] : least[l];
      }
    };
    add(x + (of.rest > 0 ? of.Cols() - kLanes : 0));
    for (int64_t i = 0; i < of.whole; i += kLanes) add(x + i);
    Fold<kTo>(most, folded + r * kTo, larger);
  }
  FoldedColumns<kTo>(folded, columns);
  for (int64_t i = 0; i < kLanes * kTo; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) max[r] = larger(columns[i + r], max[r]);
  }
  return kLooks && *std::min_element(least, least + kLanes) > C(-1e30);
}

// Adds the terms of a row that begins at `at`, and folds each of its sums to kFolded numbers.
template <typename Op, bool kNear, bool kHides, typename C = typename Op::C>
JK_INLINE void AddRow(const GroupArrays<C>& on, int64_t at, const Segment& of, C max, C power,
                      bool keeps, double (*folded)[kLanes * kFolded<typename Op::Storage>],
                      int64_t to) {
  using T = typename Op::Storage;
  using Sum = CpuSumType<T>;
  alignas(64) C last[kLanes], maxima[kLanes], powers[kLanes];
  Broadcast(max, maxima), Broadcast(power, powers);
  double total[Op::kTermSums][kLanes] = {};
  C counts[4][kLanes] = {};
  constexpr int64_t kTo = kFolded<T>;
  Sum sums[Op::kTermSums][kLanes] = {};  // of a tile
  constexpr bool kInDouble = std::is_same_v<Sum, double> && !std::is_same_v<C, double>;
  const int64_t tile = kInDouble && Op::kTermSums <= 2 ? of.whole : kTile<C>;
  const bool is_one_tile = of.whole <= tile;
  const C *const x = on.in[0] + at, *const other = on.in[1] + at, *const column = on.column;
  const int64_t tail = of.Cols() - kLanes;
  if (of.rest > 0) {
    AddVector<Op, kNear, !kNear, true, kHides>(x + tail, other + tail, column + tail,
                                               kLanes - of.rest, maxima, powers, nullptr, last,
                                               sums, kNotExact, counts);
  }
  C unused[kLanes];
  C* const terms = keeps ? on.out + at : unused;
  const int64_t step = keeps ? 1 : 0;
  for (int64_t i = 0; i < of.whole; i += tile) {
    const int64_t end = std::min(i + tile, of.whole);
    for (int64_t j = i; j < end; j += kLanes) {
      AddVector<Op, kNear, !kNear, false, kHides>(x + j, other + j, column + j, 0, maxima, powers,
                                                  nullptr, terms + step * j, sums, kNotExact,
                                                  counts);
    }
    if (is_one_tile) break;
    AddCounts<Op>(counts, sums);
    for (int s = 0; !kInDouble && s < Op::kTermSums; ++s) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) total[s][l] += sums[s][l], sums[s][l] = 0;
    }
  }
  if (keeps && of.rest > 0) std::copy_n(last, kLanes, terms + tail);
  const auto fold = [&](auto& from) JK_INLINE_LAMBDA {
    for (int s = 0; s < Op::kTermSums; ++s) {
      std::decay_t<decltype(from[0][0])> few[kTo];
      Fold<kTo>(from[s], few, [](auto a, auto b) JK_INLINE_LAMBDA { return a + b; });
      for (int64_t l = 0; l < kTo; ++l) folded[s][to * kTo + l] = few[l];
    }
  };
  if (is_one_tile || kInDouble) {
    AddCounts<Op>(counts, sums);
    fold(sums);
  } else {
    fold(total);
  }
}

template <typename Op, bool kHides, typename C = typename Op::C>
JK_INLINE void AddSums(const GroupArrays<C>& on, int64_t cols, int64_t count, const Segment& of,
                       const C* max, const C* power, const int32_t* near, bool keeps,
                       GroupSums<Op>& total, GroupSums<Op>& lost) {
  using T = typename Op::Storage;
  constexpr int64_t kTo = kFolded<T>;
  alignas(64) double folded[Op::kTermSums][kLanes * kTo], columns[kLanes * kTo];
  for (int s = 0; s < Op::kTermSums; ++s) {
    std::fill(folded[s] + count * kTo, folded[s] + kLanes * kTo, 0);
  }
  for (int64_t r = 0; r < count; ++r) {
    if constexpr (!kHides) total[4][r] += of.Cols();
    if constexpr (Op::kHasNear) {
      if (near[r]) {
        AddRow<Op, true, kHides>(on, r * cols, of, max[r], power[r], keeps, folded, r);
        continue;
      }
    }
    AddRow<Op, false, kHides>(on, r * cols, of, max[r], power[r], keeps, folded, r);
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

template <typename Op, bool kKeep, typename C = typename Op::C>
JK_INLINE void FinishRow(const GroupArrays<C>& on, int64_t at, const Segment& of,
                         const GroupConstants<Op>& row) {
  alignas(64) C last[kLanes];
  const C *const x = (kKeep ? on.out : on.in[0]) + at, *const other = on.in[1] + at;
  const int64_t tail = of.Cols() - kLanes;
  if (of.rest > 0) FinishVector<Op, kKeep>(x + tail, other + tail, on.column + tail, row, last);
  for (int64_t i = 0; i < of.whole; i += kLanes) {
    FinishVector<Op, kKeep>(x + i, other + i, on.column + i, row, on.out + at + i);
  }
  if (of.rest > 0) std::copy_n(last, kLanes, on.out + at + tail);
}

// Processes rows of at least kLanes elements in groups, or one step of one segment of a row that
// threads share. The remainder of a row is computed as its last kLanes elements, before the whole
// vectors, because terms and results may overwrite elements. Half types are widened once into a
// buffer, which also keeps the terms. The buffer of shared rows is `room`; the first step fills it.
template <typename Op, int kVectors>
JK_INLINE void RunWide(const RowCall& call, const RowRange& range) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  constexpr bool kWidens = !std::is_same_v<T, C>;
  constexpr RowStep kFirst = Op::kUsesMax    ? RowStep::kMax
                             : Op::kSums > 0 ? RowStep::kSums
                                             : RowStep::kResults;
  const int64_t cols = call.arrays.cols, size = SegmentCols(cols);
  const int64_t segments = kVectors > 0 ? 1 : SegmentCount(cols);
  const bool is_shared = kVectors == 0 && range.step != RowStep::kAll;
  const bool keeps = kKeeps<Op> && call.part == Part::kWhole;
  const int64_t most = kGroupElements * 4 / (Op::kInputs * sizeof(C) * cols);
  const int64_t at_once = segments > 1 ? 1 : std::clamp<int64_t>(most, 1, kLanes);
  const bool loads = !is_shared || range.step == kFirst;
  const int64_t room = is_shared ? call.arrays.rows * cols : at_once * cols;
  const bool transforms = Op::kTakesLabel && TransformsLogits(call);
  const bool caps = transforms && call.scales.count > 1;  // derivatives need the capped logits
  const bool has_buffers = (kWidens || transforms) && !is_shared;  // scores are widened already
  const Buffer<C> own(has_buffers ? room * BuffersOf(call) : 0);
  const Buffer<C> own_column(kWidens && Op::kTakesColumn ? (is_shared ? 2 * size : cols) : 0);
  const C* column = nullptr;
  C* const wide = is_shared ? static_cast<C*>(range.room) : own.data();
  const auto makes = [&](RowStep step) { return !is_shared || range.step == step; };
  for (int64_t at = range.begin; at < range.end; at += at_once) {
    const int64_t row = is_shared ? at / segments : at, count = std::min(at_once, range.end - at);
    const int64_t begin = is_shared ? at % segments : 0, end = is_shared ? begin + 1 : segments;
    const int64_t first_col = begin * size, end_col = end == segments ? cols : end * size;
    const int64_t first = row * cols + first_col, n = count * (end_col - first_col);
    SegmentStatistics* const shared = is_shared ? range.segments + row * segments : nullptr;
    T* const out = static_cast<T*>(call.arrays.out) + first;
    GroupArrays<C> on = {};  // from first_col on
    for (int k = 0; k < Op::kInputs; ++k) {
      C* const buffer = wide + k * room + (is_shared ? first : 0);
      const T* const from = static_cast<const T*>(call.arrays.in[k]) + first;
      on.in[k] = LoadMany(from, call.dtype, loads ? n : 0, buffer);
      if (k == 0) on.out = ResultBuffer(out, buffer + (kWidens && caps ? room : 0));
    }
    if constexpr (Op::kTakesLabel) {
      if (transforms) {
        C* const buffer = wide + (is_shared ? first : 0);
        const C* const from = on.in[0];
        if (loads) {
          OnThisMachine<TransformRows<C>>(call, row, count, first_col, n / count, from, buffer);
        }
        on.in[0] = buffer;
      }
    }
    if constexpr (Op::kTakesColumn) {
      if (is_shared || column == nullptr) {
        column = LoadColumn<T>(call.column, call.dtype, first_col, end_col - first_col,
                               own_column.data());
      }
      on.column = column;
    }

    C max[kLanes], found_max[kLanes], power[kLanes], of_max[kLanes], labelled[kLanes] = {};
    int32_t near[kLanes];
    GroupSums<Op> total = {}, lost = {};
    constexpr bool kLooks = Op::kTermSums > 2;
    bool is_open = kLooks && !is_shared;  // whether AddMaxima returns true for all segments
    std::fill_n(max, kLanes, -kInf<C>);
    const bool reduces = call.part != Part::kFinish;
    if (!reduces) {
      LoadStatistics(call, row, count, max, total);
    } else if constexpr (Op::kUsesMax) {
      if (makes(RowStep::kMax)) {
        if constexpr (Op::kTakesLabel) {
          FindLabelled(call, row, count, {on.in[0], first_col, end_col, cols, 1}, labelled);
        }
        for (int64_t s = begin; s < end; ++s) {
          const C* const x = on.in[0] + (s - begin) * size;
          is_open &= AddMaxima<kLooks>(x, cols, count, SegmentOf<kVectors>(cols, s), max);
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
        if (is_long) {
          std::fill_n(total[0], kCount * kLanes, 0), std::fill_n(lost[0], kCount * kLanes, 0);
        }
        if (adds) {
          const auto add = [&](auto hides) JK_INLINE_LAMBDA {
            AddSums<Op, hides>(on.From((s - begin) * size), cols, count,
                               SegmentOf<kVectors>(cols, s), max, power, near, keeps, total, lost);
          };
          is_open ? add(std::bool_constant<!kLooks>()) : add(std::true_type());
        }
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
      StoreStatistics(call, row, count, found_max, total, lost);
      continue;
    }
    GroupConstants<Op> constants;
    if (!Op::kStoresElements && end < segments) continue;
    MakeRows<Op>(call, row, count, max, of_max, total, lost, labelled, end == segments, constants);
    if constexpr (Op::kStoresElements) {
      for (int64_t s = begin; s < end; ++s) {
        const GroupArrays<C> from = on.From((s - begin) * size);
        for (int64_t r = 0; r < count; ++r) {
          GroupConstants<Op> of;
          for (int k = 0; k < kConstants<Op>; ++k) {
            Broadcast(constants[k][r], of[k]);
          }
          if constexpr (kKeeps<Op>) {
            if (keeps) {
              FinishRow<Op, true>(from, r * cols, SegmentOf<kVectors>(cols, s), of);
              continue;
            }
          }
          FinishRow<Op, false>(from, r * cols, SegmentOf<kVectors>(cols, s), of);
        }
      }
      if constexpr (Op::kTakesLabel) {
        const GroupColumns<C> results = {on.out, first_col, end_col, cols, 1};
        StoreExceptions<Op>(call, row, count, results, constants);
        if (transforms) {
          OnThisMachine<FinishGradients<C>>(call, row, count, first_col, n / count, on.in[0],
                                            on.out);
        }
      }
      FlushMany(on.out, call.dtype, n, out);
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
    // too little from it to be worth the time to compile it.
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
    OnThisMachine<RunWide<Op, 0>>(call, range);
  }
}

}  // namespace jaxkernels
