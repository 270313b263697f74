// Steps of a row operation on vectors of kLanes elements: load, terms and their sums, the constants
// of rows, results.
//
// Owns: vector widths, lane accumulators and their reduction, and compensated sums. A group is up
// to kLanes rows whose statistics are vectors: row r in lane r. It knows the residuals of a
// loss and its special columns (Row::other). Must not know: anything else of an operation
// (rows/ops), the loops over rows (row_drivers.h), XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_STEPS_H_
#define JAXKERNELS_ROWS_CPU_ROW_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/call.h"
#include "rows/cpu/arithmetic.h"

namespace jaxkernels {

// Elements summed in CpuSumType before they are added to a sum in double. The tile is short for
// float64, which has no wider type: there the rounding errors of the second stage are corrected.
template <typename C>
inline constexpr int64_t kTile = std::is_same_v<C, double> ? 128 : 512;

// Loops of exactly this length fill the widest vector registers.
inline constexpr int64_t kLanes = 16;

// Whether a driver keeps the terms of a row until its sum is known.
template <typename Op>
inline constexpr bool kKeeps =
    Op::kKeepsTerm || (Op::kTakesLabel && Op::kSums > 0 && Op::kStoresElements);

// The row scalars that an operation reads or stores.
template <typename Op>
struct RowEnds {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const RowScalars* in;
  RowScalars out;

  // Take loads input scalar i of a row; Store stores result scalar i.
  JK_INLINE C Take(int64_t index, int i) const {
    constexpr int kFirst = TraitsOf(Op::kOperation).operands.RowNumbers(0);
    const bool is_first = i < kFirst;
    const RowScalars& from = in[is_first ? 0 : 1];
    const int64_t at = is_first ? index * kFirst + i : index * (Op::kTakes - kFirst) + i - kFirst;
    return from.wide ? static_cast<const C*>(from.data)[at]
                     : Widen(static_cast<const T*>(from.data)[at]);
  }
  JK_INLINE void Store(int64_t index, C value, int i) const {
    const int64_t at = index * Op::kStores + i;
    if (out.wide) {
      static_cast<C*>(out.data)[at] = value;
    } else {
      Narrow(value, &static_cast<T*>(out.data)[at]);
    }
  }
};

// The rounding error of the sum a + b (Knuth's TwoSum).
JK_INLINE double SumError(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return (a - (sum - b_part)) + (b - b_part);
}

// Adds the accumulated rounding error to a sum, unless the error is NaN, as it is for an infinite
// sum.
JK_INLINE double Corrected(double sum, double lost) { return lost == lost ? sum + lost : sum; }

// Returns n elements in the compute type: in place, or widened into `buffer`. Widening is a
// separate loop, because only loops over elements of one size fill the vector registers.
template <typename C>
JK_INLINE const C* Load(const C* from, int64_t /*n*/, C* /*buffer*/) {
  return from;
}
template <typename T, typename C>
JK_INLINE const C* Load(const T* __restrict from, int64_t n, C* __restrict buffer) {
  for (int64_t i = 0; i < n; ++i) buffer[i] = Widen(from[i]);
  return buffer;
}

// As Load, for numbers [at, at + n) of a column along rows of type T.
template <typename T, typename C>
JK_INLINE const C* LoadColumn(const RowColumn& column, int64_t at, int64_t n, C* buffer) {
  if (column.wide) return static_cast<const C*>(column.data) + at;
  return Load(static_cast<const T*>(column.data) + at, n, buffer);
}

// The buffer for results in the compute type, from which Flush narrows them into `to`.
template <typename C>
JK_INLINE C* ResultBuffer(C* to, C* /*buffer*/) {
  return to;
}
template <typename T, typename C>
JK_INLINE C* ResultBuffer(T* /*to*/, C* buffer) {
  return buffer;
}
template <typename C>
JK_INLINE void Flush(const C* /*buffer*/, int64_t /*n*/, C* /*to*/) {}
template <typename T, typename C>
JK_INLINE void Flush(const C* __restrict buffer, int64_t n, T* __restrict to) {
  for (int64_t i = 0; i < n; ++i) Narrow(buffer[i], &to[i]);
}

template <typename C>
JK_INLINE void Broadcast(C value, C (&to)[kLanes]) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) to[l] = value;
}

// Interleaves the quarters of 4 * `quarter` elements.
template <typename C>
JK_INLINE void Interleave(const C* __restrict from, int64_t quarter, C* __restrict to) {
  for (int64_t i = 0; i < quarter; ++i) {
    to[4 * i] = from[i];
    to[4 * i + 1] = from[quarter + i];
    to[4 * i + 2] = from[2 * quarter + i];
    to[4 * i + 3] = from[3 * quarter + i];
  }
}

// The inverse of Interleave.
template <typename C>
JK_INLINE void Deinterleave(const C* __restrict from, int64_t quarter, C* __restrict to) {
  for (int64_t i = 0; i < quarter; ++i) {
    to[i] = from[4 * i];
    to[quarter + i] = from[4 * i + 1];
    to[2 * quarter + i] = from[4 * i + 2];
    to[3 * quarter + i] = from[4 * i + 3];
  }
}

// Interleaving the quarters twice transposes a group of 16 rows: the first time makes rows 0, 4, 8
// and 12 neighbours in their columns, the second time all rows. Shuffling vectors is faster than
// gathering elements.
// f32 softmax of 47 columns, ns per element: gathered 0.57, halves interleaved 0.49, quarters 0.42
static_assert(kLanes == 16);

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

// The values of an element that Op's members get: its inputs, and the number of its column.
template <typename Op>
inline constexpr int kValues = Op::kInputs + (Op::kTakesColumn ? 1 : 0);
template <typename Op, typename C>
JK_INLINE void LoadValues(const C* first, const C* second, const C* column, int64_t at,
                          C (&value)[kValues<Op>]) {
  value[0] = first[at];
  if constexpr (Op::kInputs == 2) value[1] = second[at];
  if constexpr (Op::kTakesColumn) value[Op::kInputs] = column[at];
}

// Turns the maxima of a group into the shifts of its terms. A row has fixed-shift terms if it is
// `near`: that depends on the row alone. Parts have ordinary terms. Returns the number of near
// rows.
template <typename Op, typename C>
JK_INLINE int MakeShifts(Part part, C* max, C* power, C* of_max, int32_t* near) {
  int near_rows = 0;
#pragma omp simd reduction(+ : near_rows)
  for (int64_t r = 0; r < kLanes; ++r) {
    // The columns of other devices determine the result if all elements are -inf.
    const bool is_hidden = part == Part::kStatistics && max[r] == -kInf<C>;
    max[r] = is_hidden ? C(0) : Op::Reference(max[r]);
    power[r] = 0, of_max[r] = 1, near[r] = 0;
    if constexpr (Op::kHasNear) {
      const bool is_near = part == Part::kWhole && IsNear(max[r]);
      power[r] = PowerOf(max[r]);
      of_max[r] = is_near ? ExpTimesPower(max[r], power[r]) : C(1);
      near[r] = is_near;
      near_rows += is_near;
    }
  }
  return near_rows;
}

// Statistics of rows in parts: the maximum and the sums.
template <typename Op, typename C>
JK_INLINE C* StatisticsOf(const RowCall& call, int64_t row) {
  return static_cast<C*>(call.statistics) + row * (1 + Op::kSums);
}
template <typename Op, typename C>
JK_INLINE void StoreStatistics(const RowCall& call, int64_t row, int64_t count, const C* max,
                               const GroupSums<Op>& total, const GroupSums<Op>& lost) {
  for (int64_t r = 0; r < count; ++r) {
    C* const to = StatisticsOf<Op, C>(call, row + r);
    to[0] = Op::kUsesMax ? max[r] : C(0);
    for (int s = 0; s < Op::kSums; ++s) to[1 + s] = Corrected(total[s][r], lost[s][r]);
  }
}
template <typename Op, typename C>
JK_INLINE void LoadStatistics(const RowCall& call, int64_t row, int64_t count, C* max,
                              GroupSums<Op>& total) {
  for (int64_t r = 0; r < count; ++r) {
    const C* const from = StatisticsOf<Op, C>(call, row + r);
    max[r] = from[0];
    for (int s = 0; s < Op::kSums; ++s) total[s][r] = from[1 + s];
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
// is the first row; only `count` of them are rows of the array. `labelled`: their elements at
// labels.
template <typename Op, typename C = typename Op::C>
JK_INLINE void MakeRows(const RowCall& call, int64_t index, int64_t count, const C* max,
                        const C* of_max, const GroupSums<Op>& total, const GroupSums<Op>& lost,
                        const C* labelled, bool stores, GroupConstants<Op>& constants) {
  static_assert(Op::kSums <= kLossSums && Op::kTakes <= kLossResiduals + kLossCotangents);
  const RowEnds<Op> ends = {call.scalars_in, call.scalars_out};
  C taken[std::max(1, Op::kTakes)][kLanes] = {};
  int label[kLanes] = {};
  for (int i = 0; i < Op::kTakes; ++i) {
    for (int64_t r = 0; r < count; ++r) taken[i][r] = ends.Take(index + r, i);
  }
  if constexpr (Op::kTakesLabel) {
    for (int64_t r = 0; r < count; ++r) {
      label[r] = static_cast<int>(std::min<int64_t>(call.labels[index + r], call.arrays.cols));
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
    if constexpr (Op::kTakesLabel) given.labelled = labelled[r], given.label = label[r];
    if constexpr (Op::kAverages) given.scalar[0] = call.epsilon;
    MakeRow<Op>(found, given, r, constants);
  }
  if (Op::kStores == 0 || !stores) return;
  if constexpr (Op::kStores == 1) {
    for (int64_t r = 0; r < count; ++r) ends.Store(index + r, constants[0][r], 0);
  } else if constexpr (Op::kStores > 0) {
    for (int64_t r = 0; r < count; ++r) {
      ends.Store(index + r, max[r], 0);
      for (int s = 0; s < Op::kSums; ++s) {
        const double sum = Corrected(total[s][r], lost[s][r]);
        ends.Store(index + r, C(s == 0 ? sum / of_max[r] : sum), 1 + s);
      }
      ends.Store(index + r, labelled[r], 1 + Op::kSums);
    }
  }
}

// In place of rounding errors that are not accumulated.
struct NotExact {};
inline constexpr NotExact kNotExact;

// Adds the summands of kLanes elements except the first `skip`: kLanes columns of a row, or one
// column of kLanes rows. kNear, kFar: whether any lane has fixed-shift (near) or ordinary (far)
// terms. Stores the terms in `terms` if the operation keeps them. `counts`: sums in C (kCounts).
// `column`: a number per lane, if the operation takes a column.
template <typename Op, bool kNear, bool kFar, bool kSkip, typename C, typename Sum, typename Lost>
JK_INLINE void AddVector(const C* first, const C* second, const C* column, int64_t skip,
                         const C* max, const C* power, const int32_t* near, C* terms, Sum& sums,
                         Lost& lost, C (&counts)[2][kLanes]) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    C value[kValues<Op>];
    LoadValues<Op>(first, second, column, l, value);
    const C x = value[0];
    // A near term belongs to the maximum if its element equals it; a far term does if it is 1.
    C term = 0, compared = 0, with = 1;
    if constexpr (kFar) compared = term = Op::Term(value, max[l]);
    if constexpr (kNear) {
      const bool is_near = !kFar || near[l];
      term = is_near ? ExpTimesPower(x, power[l]) : term;
      compared = is_near ? x : compared;
      with = is_near ? max[l] : with;
    }
    if constexpr (kKeeps<Op>) terms[l] = Op::Kept(term, x);
    constexpr bool kExact = std::is_same_v<C, double> && !std::is_same_v<Lost, const NotExact>;
    const auto add = [&](int s, C summand) JK_INLINE_LAMBDA {
      if constexpr (kSkip) summand = l < skip ? C(0) : summand;
      if constexpr (kExact) lost[s][l] += SumError(sums[s][l], summand);
      sums[s][l] += summand;
    };
    if constexpr (Op::kTermSums > 2) {
      const auto more = Op::MoreTerms(term, x, max[l]);
      add(2, more.spread), add(3, more.total);
      counts[1][l] += kSkip && l < skip ? C(0) : more.seen;
    }
    if constexpr (Op::kTermSums > 1) {
      const C second_term = Op::SecondTerm(term, value, compared == with);
      if constexpr (Op::kCounts) {
        counts[0][l] += kSkip && l < skip ? C(0) : second_term;
      } else {
        add(1, second_term);
      }
    }
    add(0, term);
  }
}

// Moves the sums that AddVector accumulated in C.
template <typename Op, typename C, typename Sum>
JK_INLINE void AddCounts(C (&counts)[2][kLanes], Sum (*total)[kLanes]) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    if constexpr (Op::kCounts) total[1][l] += counts[0][l], counts[0][l] = 0;
    if constexpr (Op::kTermSums > 2) total[4][l] += counts[1][l], counts[1][l] = 0;
  }
}

template <typename Op, bool kKeep, typename C>
JK_INLINE C FinishElement(const C (&value)[kValues<Op>], const GroupConstants<Op>& rows,
                          int64_t r) {
  const typename Op::Row row = RowAt<Op>(rows, r);
  if constexpr (kKeep) {
    return Op::FinishTerm(value[0], value[Op::kInputs - 1], row);
  } else {
    return Op::Finish(value, row);
  }
}

// Computes kLanes results from elements, or from kept terms in `first` if kKeep. `rows`: the
// constants per lane; `column` as for AddVector.
template <typename Op, bool kKeep, typename C>
JK_INLINE void FinishVector(const C* first, const C* second, const C* column,
                            const GroupConstants<Op>& rows, C* result) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    C value[kValues<Op>];
    LoadValues<Op>(first, second, column, l, value);
    result[l] = FinishElement<Op, kKeep>(value, rows, l);
  }
}

// The elements at the labels of rows, if in columns [begin, end), else 0; NaN for a label that is
// too large. Read them before terms or results are stored, which may overwrite them.
template <typename T, typename C>
JK_INLINE void FindLabelled(const RowCall& call, int64_t row, int64_t count, int64_t begin,
                            int64_t end, C* labelled) {
  if (call.labels == nullptr) return;
  const int64_t cols = call.arrays.cols;
  const T* const x = static_cast<const T*>(call.arrays.in[0]) + row * cols;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t label = call.labels[row + r];
    if (label >= begin && label < end) labelled[r] = Widen(x[r * cols + label]);
    if (label >= cols) labelled[r] = std::numeric_limits<C>::quiet_NaN();
  }
}

// Replaces special results of rows in columns [begin, end): at the label, or everywhere.
template <typename Op>
JK_INLINE void StoreExceptions(const RowCall& call, int64_t row, int64_t count, int64_t begin,
                               int64_t end, const GroupConstants<Op>& rows) {
  if constexpr (Op::kTakesLabel) {
    using T = typename Op::Storage;
    const int64_t cols = call.arrays.cols;
    T* out = static_cast<T*>(call.arrays.out) + row * cols;
    for (int64_t r = 0; r < count; ++r, out += cols) {
      const int64_t label = call.labels[row + r];
      T value;
      const typename Op::Row of_row = RowAt<Op>(rows, r);
      Narrow(of_row.other.result, &value);
      if (of_row.other.HasAll(cols)) {
        std::fill(out + begin, out + end, value);
      } else if (label >= begin && label < end) {
        out[label] = value;
      }
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_STEPS_H_
