// Steps of a row operation on up to a tile of elements: load, maximum, terms and their sums, store.
//
// Owns: vector widths, tiles, and compensated sums. Must not know: the operations (row_ops.h), the
// loops over rows (row_drivers.h), XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_STEPS_H_
#define JAXKERNELS_ROWS_CPU_ROW_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/call.h"

namespace jaxkernels {

// Elements summed in CpuSumType before they are added to a sum in double. The tile is short for
// float64, which has no wider type: there the rounding errors of the second stage are corrected.
template <typename C>
inline constexpr int64_t kTile = std::is_same_v<C, double> ? 128 : 512;

// Loops of exactly this length fill the widest vector registers.
inline constexpr int64_t kLanes = 16;

// Calls body(begin, n) for the tiles of a row.
template <typename C, typename Body>
JK_INLINE void ForTiles(int64_t cols, Body body) {
  for (int64_t i = 0; i < cols; i += kTile<C>) body(i, std::min(kTile<C>, cols - i));
}

// Pointers into the input arrays of an operation.
template <typename Op>
struct Inputs {
  using T = typename Op::Storage;
  const T* first;
  const T* second;  // null unless the operation reads two arrays

  JK_INLINE Inputs At(int64_t i) const {
    return {first + i, Op::kInputs == 1 ? nullptr : second + i};
  }
};

// The row scalars that an operation reads or stores.
template <typename Op>
struct RowEnds {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const RowScalars* in = nullptr;
  RowScalars out = {};

  // Take loads input scalar i of a row; Store stores result scalar i.
  JK_INLINE C Take(int64_t index, int i = 0) const {
    constexpr int kFirst = TraitsOf(Op::kOperation).operands.RowNumbers(0);
    const bool is_first = i < kFirst;
    const RowScalars& from = in[is_first ? 0 : 1];
    const int64_t at = is_first ? index * kFirst + i : index * (Op::kTakes - kFirst) + i - kFirst;
    return from.wide ? static_cast<const C*>(from.data)[at]
                     : Widen(static_cast<const T*>(from.data)[at]);
  }
  JK_INLINE void Store(int64_t index, C value, int i = 0) const {
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
JK_INLINE C MaxOf(const C* x, int64_t n, C max) {
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i)
    max = x[i] > max ? x[i] : max;  // ignores NaN; the sum propagates it
  return max;
}

// Running sums of a row, and their rounding errors.
template <typename Op>
struct RunningSums {
  double sum[Op::kSums] = {}, lost[Op::kSums] = {};

  // kExact: the rounding error is accumulated.
  template <bool kExact>
  JK_INLINE void Add(int s, double part) {
    if constexpr (kExact) lost[s] += SumError(sum[s], part);
    sum[s] += part;
  }
  // Adds the sums of later elements.
  JK_INLINE void Merge(const double* later_sum, const double* later_lost) {
    for (int s = 0; s < Op::kSums; ++s) {
      Add<true>(s, later_sum[s]);
      lost[s] += later_lost[s];
    }
  }
  JK_INLINE typename Op::Found Of(typename Op::C max) const {
    typename Op::Found found;
    found.max = max;
    for (int s = 0; s < Op::kSums; ++s) found.sum[s] = Corrected(sum[s], lost[s]);
    return found;
  }
};

// Adds n <= kTile terms except the first `skip`. Stores all of them in `terms` if kKeep. kNear:
// `max` is Op::NearReference of the maximum.
template <typename Op, bool kKeep, bool kSkip, bool kExact, bool kNear = false>
JK_INLINE void AddTerms(const Inputs<Op>& in, int64_t n, int64_t skip, typename Op::C max,
                        typename Op::C* terms, RunningSums<Op>& sums) {
  using C = typename Op::C;
  C first_buffer[kTile<C>], second_buffer[kTile<C>];
  const C* first = Load(in.first, n, first_buffer);
  const C* second = Op::kInputs == 2 ? Load(in.second, n, second_buffer) : nullptr;
  CpuSumType<typename Op::Storage> sum = 0, second_sum = 0;
  if constexpr (Op::kSums == 1) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      C term;
      if constexpr (kNear) {
        term = Op::NearTerm(first[i], max);
      } else {
        term = Op::Term(first[i], Op::kInputs == 2 ? second[i] : C(0), max);
      }
      sum += kSkip && i < skip ? C(0) : term;
      if constexpr (kKeep) terms[i] = term;
    }
  } else {
    static_assert(!kNear);
#pragma omp simd reduction(+ : sum, second_sum)
    for (int64_t i = 0; i < n; ++i) {
      const C other = Op::kInputs == 2 ? second[i] : C(0);
      C term = Op::Term(first[i], other, max);
      const C second_term = Op::SecondTerm(term, other, term == C(1));
      sum += kSkip && i < skip ? C(0) : term;
      second_sum += kSkip && i < skip ? C(0) : second_term;
      if constexpr (kKeep) terms[i] = term;
    }
    sums.template Add<kExact>(1, second_sum);
  }
  sums.template Add<kExact>(0, sum);
}

// Stores n <= kTile results.
template <typename Op, bool kKeep>
JK_INLINE void Store(const Inputs<Op>& in, int64_t n, const typename Op::Row& row,
                     const typename Op::C* terms, typename Op::Storage* out) {
  using C = typename Op::C;
  C first_buffer[kTile<C>], second_buffer[kTile<C>], result_buffer[kTile<C>];
  C* result = ResultBuffer(out, result_buffer);
  const C* second = Op::kInputs == 2 ? Load(in.second, n, second_buffer) : nullptr;
  if constexpr (kKeep) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      result[i] = Op::FinishTerm(terms[i], Op::kInputs == 2 ? second[i] : C(0), row);
    }
  } else {
    const C* first = Load(in.first, n, first_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      result[i] = Op::Finish(first[i], Op::kInputs == 2 ? second[i] : C(0), row);
    }
  }
  Flush(result, n, out);
}

// The constants of row `row`.
template <typename Op>
JK_INLINE typename Op::Row RowOf(const typename Op::Found& found, const RowEnds<Op>& ends,
                                 int64_t row) {
  if constexpr (Op::kTakes > 0) {
    return Op::MakeRow(found, ends.Take(row));
  } else {
    return Op::MakeRow(found);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_STEPS_H_
