// The two parts of a row operation on the CPU: the statistics of a row, and its result from given
// statistics. They serve rows whose columns are sharded over devices.
//
// Owns: the loop over a row in each part. Must not know: other devices, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_ROW_PARTS_H_
#define JAXKERNELS_ROWS_CPU_ROW_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rows/cpu/attention_rows.h"
#include "rows/cpu/row_drivers.h"

namespace jaxkernels {

// Computes the maximum, and the sums of the terms relative to it. They are relative to 0 if all
// elements are -inf, so that the columns of other devices determine the result.
template <typename Op>
JK_INLINE void ReduceRow(const Inputs<Op>& in, int64_t cols, typename Op::C* statistics) {
  using C = typename Op::C;
  C max = -kInf<C>;
  if constexpr (Op::kUsesMax) {
    ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
      C buffer[kTile<C>];
      max = MaxOf(Load(in.first + i, n, buffer), n, max);
    });
  }
  const C reference = max == -kInf<C> ? C(0) : Op::Reference(max);
  RunningSums<Op> sums;
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    AddTerms<Op, false, false, true>(in.At(i), n, 0, reference, nullptr, sums);
  });
  const typename Op::Found found = sums.Of(max);
  statistics[0] = Op::kUsesMax ? max : C(0);
  for (int s = 0; s < Op::kSums; ++s) statistics[1 + s] = static_cast<C>(found.sum[s]);
}

// Stores the result of row `index` of an operation that stores elements.
template <typename Op>
JK_INLINE void FinishRow(const Inputs<Op>& in, int64_t cols, const typename Op::C* statistics,
                         const RowEnds<Op>& ends, int64_t index, typename Op::Storage* out) {
  using C = typename Op::C;
  typename Op::Found found;
  found.max = Op::Reference(statistics[0]);
  std::copy_n(statistics + 1, Op::kSums, found.sum);
  const typename Op::Row row = RowOf(found, ends, index);
  ForTiles<C>(cols, [&](int64_t i, int64_t n)
                        JK_INLINE_LAMBDA { Store<Op, false>(in.At(i), n, row, nullptr, out + i); });
}

template <typename Op>
JK_INLINE void RunPart(const RowCall& call, int64_t begin, int64_t end) {
  using T = typename Op::Storage;
  const int64_t cols = call.arrays.cols;
  const Inputs<Op> in = {static_cast<const T*>(call.arrays.in[0]),
                         static_cast<const T*>(call.arrays.in[1])};
  const RowEnds<Op> ends = {call.scalars_in, call.scalars_out};
  T* const out = static_cast<T*>(call.arrays.out);
  for (int64_t row = begin; row < end; ++row) {
    auto* const statistics = static_cast<typename Op::C*>(call.statistics) + row * (1 + Op::kSums);
    if (call.part == Part::kStatistics) {
      ReduceRow(in.At(row * cols), cols, statistics);
    } else if constexpr (Op::kStoresElements) {
      FinishRow(in.At(row * cols), cols, statistics, ends, row, out + row * cols);
    }
  }
}

// As RunPart, for the forward attention operations: a row without visible columns gives zeros.
template <typename T>
JK_INLINE void RunAttentionForwardPart(const RowCall& call, int64_t begin, int64_t end) {
  using C = CpuComputeType<T>;
  using Op = ForwardOfLoaded<T>;
  const int64_t cols = call.arrays.cols;
  std::vector<C> scores(cols), results(cols);
  for (int64_t row = begin; row < end; ++row) {
    C* const statistics = static_cast<C*>(call.statistics) + 2 * row;
    LoadScores<T>(call.arrays, call.attention, row, {0, static_cast<int>(cols)}, scores.data(),
                  results.data());
    if (call.part == Part::kStatistics) {
      ReduceRow<Op>({scores.data(), nullptr}, cols, statistics);
      continue;
    }
    if (statistics[1] == C(0)) {
      std::fill(results.begin(), results.end(), C(0));
    } else {
      FinishRow<Op>({scores.data(), nullptr}, cols, statistics, {}, row, results.data());
    }
    NarrowAll(results.data(), cols, static_cast<T*>(call.arrays.out) + row * cols);
  }
}

template <typename T>
JK_INLINE void RunAttentionGradPart(const RowCall& call, int64_t begin, int64_t end) {
  using C = CpuComputeType<T>;
  using Op = SoftmaxGrad<C>;
  const int64_t cols = call.arrays.cols;
  std::vector<C> y(cols), dy(cols), results(cols);
  for (int64_t row = begin; row < end; ++row) {
    C* const statistics = static_cast<C*>(call.statistics) + 2 * row;
    LoadGradient<T>(call.arrays, row, {0, static_cast<int>(cols)}, y.data(), dy.data());
    if (call.part == Part::kStatistics) {
      ReduceRow<Op>({y.data(), dy.data()}, cols, statistics);
      continue;
    }
    FinishRow<Op>({y.data(), dy.data()}, cols, statistics, {}, row, results.data());
    ScaleGradient(y.data(), cols, static_cast<C>(call.attention.scale), results.data());
    NarrowAll(results.data(), cols, static_cast<T*>(call.arrays.out) + row * cols);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_ROW_PARTS_H_
