// How the CPU walks rows: two drivers, one for long rows and one for groups of short ones.
//
// Owns: vector widths, tiles, the rest of a row that fills no vector. An operation (row_ops.h)
// says what is reduced and stored. Must not know: which operation does what, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_
#define JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/cpu/kernels.h"

namespace jaxkernels {

// Elements summed in CpuSumType before the sum goes on in double. Short for float64, which has no
// wider type to sum in: there the rounding errors of the second stage are corrected.
template <typename C>
inline constexpr int64_t kTile = std::is_same_v<C, double> ? 128 : 512;

// Loops of exactly this length fill the widest vector registers.
inline constexpr int64_t kLanes = 16;

// Rows up to this length are computed kLanes at a time, one row in each lane, where that is faster
// than having the lanes along the row. EPYC (Zen 5), one core, 2026-11, 33 columns, ns per element,
// this way and that way: softmax float32 0.67 and 1.01, bfloat16 0.61 and 1.92; its gradient
// bfloat16 0.50 and 1.09, but float32 0.51 and 0.27. float64 is even at 16 to 24; softmax at 64
// columns.
inline constexpr int64_t kMostNarrowCols = 48;
template <typename Op>
inline constexpr int64_t kNarrowCols =
    sizeof(typename Op::Storage) == 2 || (sizeof(typename Op::Storage) == 4 && Op::kInputs == 1)
        ? kMostNarrowCols
        : 15;

// Summands of half storage types are kept on the stack in rows up to this length, else computed
// twice (bfloat16 softmax, same machine: 0.25 ns per element against 0.36).
inline constexpr int64_t kKeptTerms = 4096;

// The arrays that an operation reads, from some element on.
template <typename Op>
struct Inputs {
  using T = typename Op::Storage;
  const T* first;
  const T* second;  // null unless the operation reads two arrays

  JK_INLINE Inputs At(int64_t i) const {
    return {first + i, Op::kInputs == 1 ? nullptr : second + i};
  }
};

// The rounding error of the sum a + b (Knuth's TwoSum).
JK_INLINE double SumError(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return (a - (sum - b_part)) + (b - b_part);
}

// A sum and what its roundings lost; an infinite sum has lost nothing that could be named.
JK_INLINE double Corrected(double sum, double lost) { return lost == lost ? sum + lost : sum; }

// n elements in the compute type: where they are, or widened into `buffer`. Widening is a loop of
// its own, because loops over elements of one size alone fill the vector registers.
template <typename C>
JK_INLINE const C* Load(const C* from, int64_t /*n*/, C* /*buffer*/) {
  return from;
}
template <typename T, typename C>
JK_INLINE const C* Load(const T* __restrict from, int64_t n, C* __restrict buffer) {
  for (int64_t i = 0; i < n; ++i) buffer[i] = Widen(from[i]);
  return buffer;
}

// Where n results in the compute type are to be written before Flush narrows them to their place.
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
    max = x[i] > max ? x[i] : max;  // passes over NaN: the sum finds it
  return max;
}

// The sum of n <= kTile terms without the first `skip`; all are also kept in `terms` if kKeep.
template <typename Op, bool kKeep, bool kSkip>
JK_INLINE double SumOf(const Inputs<Op>& in, int64_t n, int64_t skip, typename Op::C max,
                       typename Op::C* terms) {
  using C = typename Op::C;
  C first_buffer[kTile<C>], second_buffer[kTile<C>];
  const C* first = Load(in.first, n, first_buffer);
  const C* second = Op::kInputs == 2 ? Load(in.second, n, second_buffer) : nullptr;
  CpuSumType<typename Op::Storage> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const C term = Op::Term(first[i], Op::kInputs == 2 ? second[i] : C(0), max);
    sum += kSkip && i < skip ? C(0) : term;
    if constexpr (kKeep) terms[i] = term;
  }
  return sum;
}

// Writes n <= kTile results.
template <typename Op, bool kKeep>
JK_INLINE void Store(const Inputs<Op>& in, int64_t n, const typename Op::Row& row,
                     const typename Op::C* terms, typename Op::Storage* out) {
  using C = typename Op::C;
  C first_buffer[kTile<C>], second_buffer[kTile<C>], result_buffer[kTile<C>];
  C* result = ResultBuffer(out, result_buffer);
  if constexpr (kKeep) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) result[i] = Op::FinishTerm(terms[i], row);
  } else {
    const C* first = Load(in.first, n, first_buffer);
    const C* second = Op::kInputs == 2 ? Load(in.second, n, second_buffer) : nullptr;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      result[i] = Op::Finish(first[i], Op::kInputs == 2 ? second[i] : C(0), row);
    }
  }
  Flush(result, n, out);
}

// One row of at least kLanes elements. Whole vectors first; what is left is computed with the last
// kLanes elements of the row, some of which are then computed twice. `terms` may be `out`.
template <typename Op, bool kKeep>
JK_INLINE void RunWideRow(const Inputs<Op>& in, int64_t cols, typename Op::C* terms,
                          typename Op::Storage* out) {
  using C = typename Op::C;
  const int64_t whole = cols / kLanes * kLanes;
  const int64_t last = cols - kLanes;
  const bool has_rest = whole < cols;
  const auto tile = [=](int64_t begin) {
    return whole - begin < kTile<C> ? whole - begin : kTile<C>;
  };
  C last_terms[kLanes];

  C max = -kInf<C>;
  if constexpr (Op::kUsesMax) {
    C buffer[kTile<C>];
    for (int64_t i = 0; i < whole; i += kTile<C>) {
      max = MaxOf(Load(in.first + i, tile(i), buffer), tile(i), max);
    }
    if (has_rest) max = MaxOf(Load(in.first + last, kLanes, buffer), kLanes, max);
  }
  double sum = 0, lost = 0;
  for (int64_t i = 0; i < whole; i += kTile<C>) {
    const double part =
        SumOf<Op, kKeep, false>(in.At(i), tile(i), 0, max, kKeep ? terms + i : nullptr);
    if constexpr (std::is_same_v<C, double>) lost += SumError(sum, part);
    sum += part;
  }
  if (has_rest) {
    sum += SumOf<Op, kKeep, true>(in.At(last), kLanes, whole - last, max, last_terms);
  }
  const typename Op::Row row = Op::MakeRow(max, Corrected(sum, lost));
  for (int64_t i = 0; i < whole; i += kTile<C>) {
    Store<Op, kKeep>(in.At(i), tile(i), row, kKeep ? terms + i : nullptr, out + i);
  }
  if (has_rest) Store<Op, kKeep>(in.At(last), kLanes, row, last_terms, out + last);
}

template <typename Op>
JK_INLINE void RunWide(const Inputs<Op>& in, const RowArrays& rows, typename Op::Storage* out) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const int64_t cols = rows.cols;
  if constexpr (Op::kKeepsTerm && std::is_same_v<T, C>) {
    for (int64_t i = 0; i < rows.rows * cols; i += cols) {
      RunWideRow<Op, true>(in.At(i), cols, out + i, out + i);
    }
    return;
  } else if constexpr (Op::kKeepsTerm) {
    if (cols <= kKeptTerms) {
      C terms[kKeptTerms];
      for (int64_t i = 0; i < rows.rows * cols; i += cols) {
        RunWideRow<Op, true>(in.At(i), cols, terms, out + i);
      }
      return;
    }
  }
  for (int64_t i = 0; i < rows.rows * cols; i += cols) {
    RunWideRow<Op, false>(in.At(i), cols, nullptr, out + i);
  }
}

// to[column][row] = from[row][column], for kLanes rows
template <typename T, typename C>
JK_INLINE void LoadColumns(const T* from, int64_t cols, C* to) {
  C wide[kLanes * kMostNarrowCols];
  const C* rows = Load(from, kLanes * cols, wide);
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < kLanes; ++r) to[c * kLanes + r] = rows[r * cols + c];
  }
}

// to[row][column] = from[column][row]
template <typename T, typename C>
JK_INLINE void StoreColumns(const C* from, int64_t cols, T* to) {
  C wide[kLanes * kMostNarrowCols];
  C* rows = ResultBuffer(to, wide);
  for (int64_t r = 0; r < kLanes; ++r) {
    for (int64_t c = 0; c < cols; ++c) rows[r * cols + c] = from[c * kLanes + r];
  }
  Flush(rows, kLanes * cols, to);
}

// kLanes rows of at most kNarrowCols elements, each in its own lane.
template <typename Op>
JK_INLINE void RunNarrowGroup(const Inputs<Op>& in, int64_t cols, typename Op::Storage* out) {
  using C = typename Op::C;
  C first[kLanes * kNarrowCols<Op>], second[kLanes * kNarrowCols<Op>];
  C max[kLanes], sum[kLanes], extra[kLanes];
  CpuSumType<typename Op::Storage> total[kLanes], lost[kLanes];
  LoadColumns(in.first, cols, first);
  if constexpr (Op::kInputs == 2) LoadColumns(in.second, cols, second);

  for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>, total[r] = 0, lost[r] = 0;
  if constexpr (Op::kUsesMax) {
    for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) max[r] = first[i + r] > max[r] ? first[i + r] : max[r];
    }
  }
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      const C term = Op::Term(first[i + r], Op::kInputs == 2 ? second[i + r] : C(0), max[r]);
      if constexpr (std::is_same_v<typename Op::Storage, double>) {
        lost[r] += SumError(total[r], term);
      }
      total[r] += term;
    }
  }
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    const typename Op::Row row = Op::MakeRow(max[r], Corrected(total[r], lost[r]));
    max[r] = row.max, sum[r] = row.sum, extra[r] = row.extra;
  }
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      const typename Op::Row row = {max[r], sum[r], extra[r]};
      first[i + r] = Op::Finish(first[i + r], Op::kInputs == 2 ? second[i + r] : C(0), row);
    }
  }
  StoreColumns(first, cols, out);
}

// The first `left` of `size` elements, and zeros.
template <typename T>
JK_INLINE const T* Padded(const T* from, int64_t left, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) to[i] = i < left ? from[i] : T{};
  return to;
}

template <typename Op>
JK_INLINE void RunNarrow(const Inputs<Op>& in, const RowArrays& rows, typename Op::Storage* out) {
  using T = typename Op::Storage;
  constexpr int64_t kMostElements = kLanes * kNarrowCols<Op>;
  const int64_t all = rows.rows * rows.cols, size = kLanes * rows.cols;
  for (int64_t i = 0; i < all; i += size) {
    // The last rows stand in a group with rows of zeros. One call serves whole groups and this one,
    // because each would be code of its own.
    T first[kMostElements], second[kMostElements], last[kMostElements];
    const int64_t left = all - i;
    const bool is_whole = left >= size;
    Inputs<Op> group = in.At(i);
    if (!is_whole) {
      group.first = Padded(group.first, left, size, first);
      if constexpr (Op::kInputs == 2) group.second = Padded(group.second, left, size, second);
    }
    RunNarrowGroup<Op>(group, rows.cols, is_whole ? out + i : last);
    if (!is_whole) std::copy_n(last, left, out + i);
  }
}

// All rows of an operation, by the driver that fits their length.
template <typename Op>
JK_INLINE void RunAll(const RowArrays& rows) {
  using T = typename Op::Storage;
  const Inputs<Op> in = {static_cast<const T*>(rows.in[0]), static_cast<const T*>(rows.in[1])};
  if (rows.cols <= kNarrowCols<Op>) {
    RunNarrow(in, rows, static_cast<T*>(rows.out));
  } else {
    RunWide(in, rows, static_cast<T*>(rows.out));
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_DRIVERS_H_
