// Groups of rows on the CPU: the statistics of a group, the constants and row scalars computed
// from them, and the labels of rows. A group is up to kLanes rows whose statistics are vectors: row
// r in lane r.
//
// Owns: the row scalars of a call, and the statistics of a part. It knows the residuals of a loss
// and its special columns (Row::other). Must not know: anything else of an operation (rows/ops),
// the elements of rows (row_steps.h), XLA, threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rows/call.h"
#include "rows/cpu/arithmetic.h"
#include "rows/cpu/logit_scales.h"
#include "rows/cpu/vectors.h"

namespace jaxkernels {

template <typename Op>
struct PerRowOperands {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const RowScalars* in;
  RowScalars out;
  DType dtype;

  // Take loads input scalar i of a row; Store stores result scalar i.
  JK_INLINE C Take(int64_t index, int i) const {
    constexpr int kFirst = TraitsOf(Op::kOperation).operands.RowNumbers(0);
    const bool is_first = i < kFirst;
    const RowScalars& from = in[is_first ? 0 : 1];
    const int64_t at = is_first ? index * kFirst + i : index * (Op::kTakes - kFirst) + i - kFirst;
    return from.wide ? static_cast<const C*>(from.data)[at]
                     : Widen(static_cast<const T*>(from.data)[at], dtype);
  }
  JK_INLINE void Store(int64_t index, C value, int i) const {
    const int64_t at = index * Op::kStores + i;
    if (out.wide) {
      static_cast<C*>(out.data)[at] = value;
    } else {
      Narrow(value, dtype, &static_cast<T*>(out.data)[at]);
    }
  }
};

// Sums of a group, or their rounding errors. (They are separate arrays: the compiler keeps a struct
// of them in memory, and short rows take twice as long.)
template <typename Op>
using GroupSums = double[std::max(1, Op::kSums)][kLanes];

// The constants of a group's rows: the fields of Op::Row.
template <typename Op>
inline constexpr int kConstants = sizeof(typename Op::Row) / sizeof(typename Op::C);
template <typename Op>
using GroupConstants = typename Op::C[kConstants<Op>][kLanes];

// Row r of a group. (Loops of vectors call it and Op::MakeRow in functions of their own: a Row that
// is returned into the body of such a loop stays in memory, and so does one that memcpy copies.)
// EPYC, us per rms_norm of 2^19 elements, 512 columns, cast and memcpy: f32 58, 235; bf16 73, 219
template <typename Op, typename C = typename Op::C>
JK_INLINE typename Op::Row RowAt(const GroupConstants<Op>& constants, int64_t r) {
  typename Op::Row row;
  static_assert(std::is_trivially_copyable_v<decltype(row)> &&
                    kConstants<Op> * sizeof(C) == sizeof(row) &&
                    alignof(decltype(row)) == alignof(C),
                "Row has the layout of C[]");
  for (int k = 0; k < kConstants<Op>; ++k) {
    reinterpret_cast<C*>(&row)[k] = constants[k][r];
  }
  return row;
}

// Statistics of rows in parts: the maximum and the sums. One copy per compute type serves all
// operations; parts are rare.
template <typename C>
JK_INLINE C* StatisticsOf(const RowCall& call, int64_t row) {
  return static_cast<C*>(call.statistics) +
         row * (1 + SumsOf(TraitsOf(call.operation), call.dtype));
}
template <typename C>
__attribute__((noinline)) void StoreStatistics(const RowCall& call, int64_t row, int64_t count,
                                               const C* max, const double (*total)[kLanes],
                                               const double (*lost)[kLanes]) {
  const OperationTraits& traits = TraitsOf(call.operation);
  const int sums = SumsOf(traits, call.dtype);
  C* to = StatisticsOf<C>(call, row);
  for (int64_t r = 0; r < count; ++r) {
    *to++ = UsesMax(traits, call.dtype) ? max[r] : C(0);
    for (int s = 0; s < sums; ++s) *to++ = Corrected(total[s][r], lost[s][r]);
  }
}
template <typename C>
__attribute__((noinline)) void LoadStatistics(const RowCall& call, int64_t row, int64_t count,
                                              C* max, double (*total)[kLanes]) {
  const int sums = SumsOf(TraitsOf(call.operation), call.dtype);
  const C* from = StatisticsOf<C>(call, row);
  for (int64_t r = 0; r < count; ++r) {
    max[r] = *from++;
    for (int s = 0; s < sums; ++s) total[s][r] = *from++;
  }
}

template <typename Op, typename C, typename Found>
JK_INLINE void MakeRow(const Found& found, const GivenRow<C>& given, int64_t r,
                       GroupConstants<Op>& constants) {
  const typename Op::Row row = Op::MakeRow(found, given);
  for (int k = 0; k < kConstants<Op>; ++k) {
    constants[k][r] = reinterpret_cast<const C*>(&row)[k];
  }
}

// Computes the constants of a group from its maxima and sums, and stores its row scalars. `index`
// is the first row; `count` lanes have rows. `labelled`: their elements at labels. `stores`: false
// for all but the last segment of a shared row.
template <typename Op, typename C = typename Op::C>
JK_INLINE void MakeRows(const RowCall& call, int64_t index, int64_t count, const C* max,
                        const C* of_max, const GroupSums<Op>& total, const GroupSums<Op>& lost,
                        const C* labelled, bool stores, GroupConstants<Op>& constants) {
  static_assert(Op::kSums <= kLossSums && Op::kTakes <= kLossResiduals + kLossCotangents);
  const PerRowOperands<Op> operands = {call.scalars_in, call.scalars_out, call.dtype};
  C taken[std::max(1, Op::kTakes)][kLanes] = {};
  int label[kLanes] = {};
  C unit[kLanes] = {};
  for (int i = 0; i < Op::kTakes; ++i) {
    for (int64_t r = 0; r < count; ++r) taken[i][r] = operands.Take(index + r, i);
  }
  if constexpr (Op::kTakesLabel) {
    for (int64_t r = 0; r < count; ++r) {
      label[r] = static_cast<int>(std::min<int64_t>(call.labels[index + r], call.arrays.cols));
      unit[r] = LogitScale<C>(call.scales, index + r).factor;
    }
  }
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    Statistics<C, Op::kSums> found = {};
    found.max = max[r], found.of_max = of_max[r];
    for (int s = 0; s < Op::kSums; ++s) found.sum[s] = Corrected(total[s][r], lost[s][r]);
    GivenRow<C> given = {};
    given.cols = static_cast<double>(call.arrays.cols);
    for (int i = 0; i < Op::kTakes; ++i) given.scalar[i] = taken[i][r];
    if constexpr (Op::kTakesLabel) {
      given.labelled = labelled[r], given.label = label[r], given.unit = unit[r];
    }
    if constexpr (Op::kAverages) given.scalar[0] = call.epsilon;
    MakeRow<Op>(found, given, r, constants);
  }
  if (Op::kStores == 0 || !stores) return;
  if constexpr (Op::kStores == 1) {
    for (int64_t r = 0; r < count; ++r) operands.Store(index + r, constants[0][r], 0);
  } else if constexpr (Op::kStores > 0) {
    for (int64_t r = 0; r < count; ++r) {
      operands.Store(index + r, max[r], 0);
      for (int s = 0; s < Op::kSums; ++s) {
        const double sum = Corrected(total[s][r], lost[s][r]);
        const bool is_of_terms = s == 0 || s == 2;  // rest and spread are multiples of of_max
        operands.Store(index + r, C(is_of_terms ? sum / of_max[r] : sum), 1 + s);
      }
      operands.Store(index + r, labelled[r], 1 + Op::kSums);
    }
  }
}

// Elements of a group of rows in columns [begin, end), in the compute type.
template <typename C>
struct GroupColumns {
  C* data;
  int64_t begin, end;
  int64_t row_stride, col_stride;

  JK_INLINE bool Has(int64_t col) const { return col >= begin && col < end; }
  JK_INLINE C& At(int64_t row, int64_t col) const {
    return data[row * row_stride + (col - begin) * col_stride];
  }
};

// The elements of `x` at the labels of rows, or 0 for labels in other columns; NaN for a label that
// is too large. Read them before terms or results are stored, which may overwrite them.
template <typename C>
JK_INLINE void FindLabelled(const RowCall& call, int64_t row, int64_t count,
                            const GroupColumns<const C>& x, C* labelled) {
  if (call.labels == nullptr) return;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t label = call.labels[row + r];
    if (x.Has(label)) labelled[r] = x.At(r, label);
    if (label >= call.arrays.cols) labelled[r] = std::numeric_limits<C>::quiet_NaN();
  }
}

// Replaces special results of rows: at the label, or everywhere.
template <typename Op, typename C>
JK_INLINE void StoreExceptions(const RowCall& call, int64_t row, int64_t count,
                               const GroupColumns<C>& out, const GroupConstants<Op>& rows) {
  for (int64_t r = 0; r < count; ++r) {
    const int64_t label = call.labels[row + r];
    const typename Op::Row of_row = RowAt<Op>(rows, r);
    if (of_row.other.HasAll(call.arrays.cols)) {
      for (int64_t col = out.begin; col < out.end; ++col) out.At(r, col) = of_row.other.result;
    } else if (out.Has(label)) {
      out.At(r, label) = of_row.other.result;
    }
  }
}

}  // namespace jaxkernels
