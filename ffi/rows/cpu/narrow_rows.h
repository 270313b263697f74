// Loops over short rows on the CPU: kLanes transposed rows at a time, one per lane.
//
// Owns: the transposition of rows and back, and which rows are short. row_steps.h has the
// arithmetic. Must not know: the operations, XLA, threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/instruction_sets.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Rows up to this length are transposed: kLanes rows at a time, one per lane. For these lengths
// that is faster than lanes along the row (row_drivers.h).
//
// EPYC (Zen 4), one core, 2026-11, ns per element, transposed and with lanes along the row:
// f32 softmax of 17, 24, 33 and 47 columns: 0.75, 0.97; 0.64, 0.69; 0.69, 0.69; 0.66, 0.49
// f32 logsumexp of the same: 0.75, 1.10; 0.64, 0.78; 0.63, 0.77; 0.60, 0.54
// f32 grad of 17 columns: 0.60, 0.43
// bf16 softmax of 20 and 23 columns: 0.78, 0.81; 0.86, 0.73
// bf16 grad of 17 columns: 0.79, 0.50
// Xeon (AVX-512, AMX), f32 log-softmax of 17, 24, 33, 40 and 47 columns: 0.90, 1.71; 0.75, 1.24;
// 0.81, 1.08; 0.73, 0.88; 0.85, 0.78
// AVX2, f32 softmax of 24, 28, 33 and 47 columns: 0.87, 0.90; 0.86, 0.80; 0.90, 0.88; 0.87, 0.62
//
// float64, and half types without kept terms, would be faster with lanes along the row from 23
// columns on, but less accurate. Transposed rows sum half types in double, and correct all rounding
// errors of float64.
//
// Losses, Xeon (AVX-512), one core, 2026-11, with former code for lanes along the row:
// f32 loss: 105 columns 0.44, 1.32; 128: 0.40, 0.64; 200: 0.40, 0.65
// f32 and gradient: 105: 0.85, 1.99; 128: 0.67, 0.81; 256: 0.70, 0.60
//
// Both half types have the lengths of float16, because one set of kernels serves them.
template <typename Op>
constexpr int64_t NarrowCols() {
  using Cols = ByDType<int64_t>;
  constexpr Cols kTwoInputs = {
      .float32 = Op::kUsesMax ? 23 : 15, .bfloat16 = 15, .float16 = 15, .float64 = 15};
  constexpr Cols kKeptTerms = {.float32 = 24, .bfloat16 = 20, .float16 = 20, .float64 = 31};
  constexpr Cols kOthers = {.float32 = 40, .bfloat16 = 31, .float16 = 31, .float64 = 31};
  if (Op::kTakesLabel) return Op::kSums == 0 ? 47 : Op::kStoresElements ? 199 : 255;
  const Cols& cols = Op::kInputs == 2 ? kTwoInputs : Op::kKeepsTerm ? kKeptTerms : kOthers;
  return cols[kDTypeOf<typename Op::Storage>];
}
template <typename Op>
inline constexpr int64_t kNarrowCols = NarrowCols<Op>();

// to[column][row] = from[row][column], for kLanes rows
template <int64_t kMostCols, typename T, typename C>
JK_INLINE void LoadColumns(const T* from, DType dtype, int64_t cols, C* to) {
  alignas(64) C wide[kLanes * kMostCols];
  alignas(64) C half_way[kLanes * kMostCols];
  const int64_t quarter = kLanes / 4 * cols;
  Interleave(Load(from, dtype, kLanes * cols, wide), quarter, half_way);
  Interleave(half_way, quarter, to);
}

// to[row][column] = from[column][row]
template <int64_t kMostCols, typename T, typename C>
JK_INLINE void StoreColumns(const C* from, DType dtype, int64_t cols, T* to) {
  alignas(64) C wide[kLanes * kMostCols];
  alignas(64) C half_way[kLanes * kMostCols];
  const int64_t quarter = kLanes / 4 * cols;
  C* rows = ResultBuffer(to, wide);
  Deinterleave(from, quarter, half_way);
  Deinterleave(half_way, quarter, rows);
  Flush(rows, dtype, kLanes * cols, to);
}

template <typename T>
JK_INLINE const T* Padded(const T* from, int64_t left, int64_t size, T* to) {
  if (from != to) std::copy_n(from, left, to);
  std::fill(to + left, to + size, T{});
  return to;
}

template <typename Op>
JK_INLINE void RunNarrow(const RowCall& call, const RowRange& range) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  constexpr int64_t kMostElements = kLanes * kNarrowCols<Op>;
  const bool caps = Op::kTakesLabel && call.scales.count > 1;  // derivatives need the capped logits
  const int64_t cols = call.arrays.cols, size = kLanes * cols;
  // The column, with each of its numbers in all lanes.
  alignas(64) C column[Op::kTakesColumn ? kMostElements : 1];
  if constexpr (Op::kTakesColumn) {
    C buffer[kNarrowCols<Op>];
    const C* const numbers = LoadColumn<T>(call.column, call.dtype, 0, cols, buffer);
    for (int64_t i = 0; i < size; ++i) column[i] = numbers[i / kLanes];
  }
  const auto column_at = [&](int64_t i) JK_INLINE_LAMBDA -> const C* {
    return Op::kTakesColumn ? column + i : nullptr;
  };
  for (int64_t row = range.begin; row < range.end; row += kLanes) {
    // The last group is padded with rows of zeros.
    T padded[kMostElements];
    alignas(64) C first[kMostElements], second[Op::kInputs == 2 ? kMostElements : 1];
    const int64_t count = std::min(kLanes, range.end - row);
    const auto load = [&](int input, C* to) JK_INLINE_LAMBDA {
      const T* from = static_cast<const T*>(call.arrays.in[input]) + row * cols;
      if constexpr (Op::kTakesLabel) {
        if (call.masking.mask != nullptr) {
          T hidden;
          Narrow(-kInf<C>, call.dtype, &hidden);
          OnThisMachine<HideRows<T>>(call, row, count, 0, cols, hidden, from,
                                     static_cast<T*>(padded));
          from = padded;
        }
      }
      if (count < kLanes) from = Padded(from, count * cols, size, padded);
      LoadColumns<kNarrowCols<Op>>(from, call.dtype, cols, to);
    };
    load(0, first);
    if constexpr (Op::kInputs == 2) load(1, second);

    C max[kLanes], power[kLanes], of_max[kLanes], labelled[kLanes] = {};
    alignas(64) C capped[Op::kTakesLabel && Op::kStoresElements ? kMostElements : 1];
    if constexpr (Op::kTakesLabel) {
      if (call.scales.data != nullptr) {
        OnThisMachine<ScaleColumns<C>>(call.scales, row, count, size, static_cast<C*>(first));
        if (caps && Op::kStoresElements) std::copy_n(first, size, capped);
      }
      FindLabelled(call, row, count, {first, 0, cols, 1, kLanes}, labelled);
    }
    C counts[4][kLanes] = {};
    int32_t near[kLanes];
    GroupSums<Op> total = {}, lost = {};  // `lost` is for float64
    for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>;
    if (call.part == Part::kFinish) {
      LoadStatistics(call, row, count, max, total);
    } else if constexpr (Op::kUsesMax) {
      for (int64_t i = 0; i < size; i += kLanes) {
#pragma omp simd
        for (int64_t r = 0; r < kLanes; ++r) max[r] = first[i + r] > max[r] ? first[i + r] : max[r];
      }
    }
    C found_max[kLanes];
    std::copy_n(max, kLanes, found_max);
    const int near_rows = MakeShifts<Op>(call.part, max, power, of_max, near);
    const auto add_terms = [&](auto some_are_near, auto some_are_far) JK_INLINE_LAMBDA {
      constexpr bool kNear = decltype(some_are_near)::value, kFar = decltype(some_are_far)::value;
      for (int64_t i = 0; i < size; i += kLanes) {
        AddVector<Op, kNear, kFar, false, true>(first + i, second + i, column_at(i), 0, max, power,
                                                near, first + i, total, lost, counts);
        if (Op::kTermSums > 2 && i % kTile<C> == 0) AddCounts<Op>(counts, total);
      }
      AddCounts<Op>(counts, total);
    };
    if constexpr (Op::kTermSums > 0) {
      if (call.part != Part::kFinish) {
        if (!Op::kHasNear || near_rows == 0) {
          add_terms(std::false_type{}, std::true_type{});
        } else if constexpr (Op::kHasNear) {
          if (near_rows == kLanes) {
            add_terms(std::true_type{}, std::false_type{});
          } else {
            add_terms(std::true_type{}, std::true_type{});
          }
        }
      }
    }
    if (call.part == Part::kStatistics) {
      StoreStatistics(call, row, count, found_max, total, lost);
      continue;
    }
    GroupConstants<Op> constants;
    MakeRows<Op>(call, row, count, max, of_max, total, lost, labelled, true, constants);
    if constexpr (Op::kStoresElements) {
      const auto finish = [&](auto keeps_terms) JK_INLINE_LAMBDA {
        for (int64_t i = 0; i < size; i += kLanes) {
          FinishVector<Op, decltype(keeps_terms)::value>(first + i, second + i, column_at(i),
                                                         constants, first + i);
        }
      };
      if (kKeeps<Op> && call.part == Part::kWhole) {
        if constexpr (kKeeps<Op>) finish(std::true_type{});
      } else {
        finish(std::false_type{});
      }
      if constexpr (Op::kTakesLabel) {
        const GroupColumns<C> results = {first, 0, cols, 1, kLanes};
        StoreExceptions<Op>(call, row, count, results, constants);
        if (caps) {
          OnThisMachine<MultiplyColumnsBySlopes<C>>(
              call.scales, row, count, size, static_cast<const C*>(capped), static_cast<C*>(first));
        }
      }
      T* const out = static_cast<T*>(call.arrays.out) + row * cols;
      StoreColumns<kNarrowCols<Op>>(first, call.dtype, cols, count < kLanes ? padded : out);
      if (count < kLanes) std::copy_n(padded, count * cols, out);
      if constexpr (Op::kTakesLabel) {
        OnThisMachine<HideRows<T>>(call, row, count, 0, cols, T{}, static_cast<const T*>(out), out);
      }
    }
  }
}

}  // namespace jaxkernels
