// Cross entropy on the CPU: what a row of logits with a label is reduced to, and the gradient of
// its loss. ffi/rows/cuda/row_ops_losses.cuh says the same for CUDA, and why.
//
// Owns: these operations and their walk over a row, in two passes, and a third for the gradient.
// Must not know: XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_
#define JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "rows/cpu/row_ops.h"
#include "rows/cpu/row_parts.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Below it exponentials are zero.
inline constexpr int kLeastLogitExponent = -1000;

// The sums of a row, in this order:
//   rest    exp(x - max) of all but the maxima
//   count   the maxima
//   spread  exp(x - max) (x - max)
//   total   x - max, but for elements that are -inf
//   seen    the elements that are not -inf
// The last three are zero unless all sums are wanted.
template <typename T>
struct CrossEntropyOp : RowOp<T, 5> {
  using typename RowOp<T, 5>::C;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = true;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesLabel = true;
  static constexpr int kStores = 7;

  // A row of -inf alone has no terms.
  JK_INLINE static C Reference(C max) { return max == -kInf<C> ? C(0) : max; }
};

// The statistics of a row, and the element at its label.
template <typename T>
struct CrossEntropyForward : CrossEntropyOp<T> {
  static constexpr Operation kOperation = Operation::kCrossEntropyForward;
  static constexpr bool kStoresElements = false;
};

// The same, and the gradient of weight * loss.
template <typename T>
struct CrossEntropyForwardGrad : CrossEntropyOp<T> {
  static constexpr Operation kOperation = Operation::kCrossEntropyForwardGrad;
  static constexpr int kTakes = 4;
};

// The gradient, given what was kept of the row and cotangents.
template <typename T>
struct CrossEntropyGrad : RowOp<T> {
  static constexpr Operation kOperation = Operation::kCrossEntropyGrad;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = false;
  static constexpr bool kKeepsTerm = false;
  static constexpr int kSums = 0;
  static constexpr bool kTakesLabel = true;
  static constexpr int kTakes = 11;
};

// The gradient of a row: exp(x - max) (factor + slope (x - max)) + constant, and `there` at its
// label, or everywhere.
template <typename C>
struct LogitGradient {
  C max, factor, slope, constant, there;
  bool is_everywhere;
};

// Adds a tile of terms relative to `max`; without kAll only the first two sums.
template <typename Op, bool kAll>
JK_INLINE void AddLogits(const typename Op::C* x, int64_t n, typename Op::C max,
                         RunningSums<Op>& sums) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  using Sum = CpuSumType<T>;
  Sum rest = 0, count = 0, spread = 0, total = 0, seen = 0;
#pragma omp simd reduction(+ : rest, count, spread, total, seen)
  for (int64_t i = 0; i < n; ++i) {
    const C term = ExpDifference<T>(x[i], max);
    const C is_max = term == C(1) ? C(1) : C(0);
    rest += term - is_max;
    count += is_max;
    if constexpr (kAll) {
      const C difference = x[i] - max;
      spread += term * std::max(difference, C(kLeastLogitExponent));
      // By a product: of `total += hidden ? 0 : difference` GCC 12 makes wrong vectors.
      const C is_seen = difference == -kInf<C> ? C(0) : C(1);
      total += is_seen * std::max(difference, std::numeric_limits<C>::lowest());
      seen += is_seen;
    }
  }
  const Sum parts[] = {rest, count, spread, total, seen};
  for (int s = 0; s < (kAll ? 5 : 2); ++s) sums.template Add<true>(s, parts[s]);
}

// The statistics of a row; the maximum of one of -inf alone is that, so that the columns of other
// devices decide what it gives.
template <typename Op>
JK_INLINE typename Op::Found ReduceLogits(const typename Op::Storage* x, int64_t cols,
                                          bool all_sums) {
  using C = typename Op::C;
  C max = -kInf<C>;
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>];
    max = MaxOf(Load(x + i, n, buffer), n, max);
  });
  RunningSums<Op> sums;
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>];
    const C* from = Load(x + i, n, buffer);
    if (all_sums) {
      AddLogits<Op, true>(from, n, Op::Reference(max), sums);
    } else {
      AddLogits<Op, false>(from, n, Op::Reference(max), sums);
    }
  });
  return sums.Of(max);
}

// The gradient of weight * loss, from the statistics of the row and the numbers that it takes.
template <typename Op>
JK_INLINE LogitGradient<typename Op::C> GradientOf(const typename Op::Found& of, double labelled,
                                                   const RowEnds<Op>& ends, int64_t row,
                                                   int64_t label, int64_t cols) {
  using C = typename Op::C;
  const double weight = ends.Take(row, 0), q = ends.Take(row, 1), share = ends.Take(row, 2);
  const double z = ends.Take(row, 3), seen = of.sum[4];
  const double log_sum = std::log1p(of.sum[0] + (of.sum[1] - 1));
  const double loss = log_sum + (of.max - labelled), slope = 2 * z * (of.max + log_sum);
  const double mass = q + share * seen + slope;  // what multiplies softmax
  LogitGradient<C> gradient = {};
  gradient.max = of.max;
  gradient.factor = C(weight * mass / (of.sum[0] + of.sum[1]));
  gradient.constant = C(-weight * share);
  // Not mass * expm1(-loss) + ..., where slope would cancel.
  const double others = (share * seen + slope) * std::exp(-loss) - share;
  gradient.there = C(weight * (q * std::expm1(-loss) + others));
  if (label < 0 || weight == 0) {
    gradient.there = 0, gradient.is_everywhere = true;
  } else if (label >= cols) {
    gradient.there = std::numeric_limits<C>::quiet_NaN(), gradient.is_everywhere = true;
  }
  return gradient;
}

// The gradient from what was kept of the row, and the cotangents of lse - x_l, of lse, of the
// entropy and of sum (lse - x).
template <typename Op>
JK_INLINE LogitGradient<typename Op::C> GradientOf(const RowEnds<Op>& ends, int64_t row) {
  using C = typename Op::C;
  const double max = ends.Take(row, 0), rest = ends.Take(row, 1), count = ends.Take(row, 2);
  const double sum = rest + count, mean = ends.Take(row, 3) / sum, seen = ends.Take(row, 5);
  const double labelled = ends.Take(row, 6), of_loss = ends.Take(row, 7);
  const double of_lse = ends.Take(row, 8), of_entropy = ends.Take(row, 9);
  const double of_rest = ends.Take(row, 10), others = of_lse + of_rest * seen;
  const double minus_loss = (labelled - max) - std::log1p(rest + (count - 1));
  const double difference = std::max(labelled - max, double{kLeastLogitExponent});
  LogitGradient<C> gradient = {};
  gradient.max = C(max);
  gradient.factor = C((of_loss + others + of_entropy * mean) / sum);
  gradient.slope = C(-of_entropy / sum);
  gradient.constant = C(-of_rest);
  gradient.there = C(of_loss * std::expm1(minus_loss) +
                     std::exp(minus_loss) * (others - of_entropy * (difference - mean)) - of_rest);
  if (of_loss == 0 && of_lse == 0 && of_entropy == 0 && of_rest == 0) {
    gradient.there = 0, gradient.is_everywhere = true;
  } else if (of_loss != 0 && std::isnan(labelled)) {
    gradient.there = C(labelled), gradient.is_everywhere = true;
  }
  return gradient;
}

template <typename T, typename C>
JK_INLINE void StoreGradient(const T* x, int64_t cols, const LogitGradient<C>& of, int64_t label,
                             T* out) {
  T there;
  Narrow(of.there, &there);
  if (of.is_everywhere) {
    std::fill(out, out + cols, there);
    return;
  }
  ForTiles<C>(cols, [&](int64_t i, int64_t n) JK_INLINE_LAMBDA {
    C buffer[kTile<C>], result_buffer[kTile<C>];
    const C* from = Load(x + i, n, buffer);
    C* result = ResultBuffer(out + i, result_buffer);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const C difference = std::max(from[j] - of.max, C(kLeastLogitExponent));
      result[j] =
          ExpDifference<T>(from[j], of.max) * (of.factor + of.slope * difference) + of.constant;
    }
    Flush(result, n, out + i);
  });
  if (label >= 0 && label < cols) out[label] = there;
}

template <typename Op>
JK_MULTIVERSION void RunCrossEntropy(const RowCall& call, int64_t begin, int64_t end) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  static_assert(MatchesTable<Op>(), "operations.h says otherwise");
  const int64_t cols = call.arrays.cols;
  const RowEnds<Op> ends = {call.scalars_in, call.scalars_out};
  for (int64_t row = begin; row < end; ++row) {
    const T* const x = static_cast<const T*>(call.arrays.in[0]) + row * cols;
    T* const out = static_cast<T*>(call.arrays.out) + row * cols;
    if constexpr (Op::kSums == 0) {
      StoreGradient(x, cols, GradientOf(ends, row), call.labels[row], out);
    } else {
      typename Op::Found found = ReduceLogits<Op>(x, cols, call.all_sums);
      if (call.part == Part::kStatistics) {
        C* const to = static_cast<C*>(call.statistics) + row * (1 + Op::kSums);
        to[0] = found.max;
        for (int s = 0; s < Op::kSums; ++s) to[1 + s] = C(found.sum[s]);
        continue;
      }
      found.max = Op::Reference(found.max);
      const int64_t label = call.labels[row];
      C labelled = label < cols ? C(0) : std::numeric_limits<C>::quiet_NaN();
      if (label >= 0 && label < cols) labelled = Widen(x[label]);
      ends.Store(row, found.max, 0);
      for (int s = 0; s < Op::kSums; ++s) ends.Store(row, C(found.sum[s]), 1 + s);
      ends.Store(row, labelled, 1 + Op::kSums);
      if constexpr (Op::kStoresElements) {
        StoreGradient(x, cols, GradientOf(found, labelled, ends, row, label, cols), label, out);
      }
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_ROWS_H_
