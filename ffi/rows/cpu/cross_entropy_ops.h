// Cross entropy on the CPU: the statistics of a row of logits with a label, and the coefficients of
// the gradient of its loss. ffi/rows/cuda/row_ops_losses.cuh does the same on CUDA and gives the
// reasons.
//
// Owns: these operations, and the statistics of a row. Must not know: the loops over rows
// (cross_entropy_rows.h), XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_OPS_H_
#define JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_OPS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/numeric_cpu.h"
#include "rows/call.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_ops.h"
#include "rows/cpu/row_steps.h"

namespace jaxkernels {

// Lower exponents give zero.
inline constexpr int kLeastLogitExponent = -1000;

// The share of the smoothing per visible element. `seen` is not counted if there is no smoothing.
JK_INLINE double ShareOf(double smoothing, double seen) {
  return smoothing == 0 || seen == 0 ? 0 : smoothing / seen;
}

// Marks the kept term of a hidden element (-inf) if all sums are computed.
inline constexpr int kHiddenTerm = -1;
// The gradient of an element from its kept term.
template <typename C>
JK_INLINE C GradientOfTerm(C term, C factor, C constant) {
  return (term < 0 ? C(0) : term) * factor + (term < 0 ? C(0) : constant);
}

// The sums of a row, in this order:
//   rest    exp(x - max) of all elements but the maxima
//   count   number of maxima
//   spread  exp(x - max) (x - max)
//   total   (x - max) kTotalScale of the elements that are not -inf
//   seen    number of elements that are not -inf
// The last three are zero unless all_sums.
template <typename T>
struct CrossEntropyOp : RowOp<T, 5> {
  using typename RowOp<T, 5>::C;
  static constexpr int kInputs = 1;
  static constexpr bool kUsesMax = true;
  static constexpr bool kKeepsTerm = false;
  static constexpr bool kTakesLabel = true;
  static constexpr int kStores = 7;
};

// Stores the statistics of a row and the element at its label.
template <typename T>
struct CrossEntropyForward : CrossEntropyOp<T> {
  static constexpr Operation kOperation = Operation::kCrossEntropyForward;
  static constexpr bool kStoresElements = false;
};

// As CrossEntropyForward, and also stores the gradient of weight * loss.
template <typename T>
struct CrossEntropyForwardGrad : CrossEntropyOp<T> {
  static constexpr Operation kOperation = Operation::kCrossEntropyForwardGrad;
  static constexpr int kTakes = 4;
};

// Stores the gradient, given the residuals of the row and cotangents.
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

// The shift of the terms: the maximum, or 0 for a row of -inf only, which has no terms.
template <typename C>
JK_INLINE C LogitReference(C max) {
  return max == -kInf<C> ? C(0) : max;
}

// Whether a row or segment has fixed-shift terms (ExpTimesPower): float32 with a maximum near 0.
template <typename T>
JK_INLINE bool HasNearLogits(double max, bool all_sums) {
  return std::is_same_v<T, float> && !all_sums && IsNear(static_cast<float>(max));
}
// The factor that turns its fixed-shift terms into exp(x - max).
JK_INLINE double NearFactor(double max) {
  return Exp<false>(double(PowerOf(static_cast<float>(max))) * 0.6931471805599453 - max, 0.0);
}

// Statistics of up to kLanes rows, one row per lane.
struct LogitRows {
  double max[kLanes], sum[5][kLanes], labelled[kLanes];
  double term_factor[kLanes];  // turns a kept term into exp(x - max)
};

// Coefficients of their gradients: exp(x - max) (factor + slope (x - max)) + constant, without the
// constant if x is -inf. The gradient at the label, or everywhere if `is_everywhere`, is `there`.
struct LogitGradients {
  double max[kLanes], factor[kLanes], slope[kLanes], constant[kLanes], there[kLanes];
  bool is_everywhere[kLanes];
};

template <typename Op>
JK_INLINE void TakeLanes(const RowEnds<Op>& ends, int64_t first, int64_t count,
                         double (*taken)[kLanes]) {
  for (int i = 0; i < Op::kTakes; ++i) {
    for (int64_t r = 0; r < kLanes; ++r) taken[i][r] = r < count ? ends.Take(first + r, i) : 0;
  }
}

// Computes the gradients of weight * loss, from the statistics of rows and their scalars.
template <typename Op>
JK_INLINE void MakeGradients(const LogitRows& of, const RowEnds<Op>& ends, const int32_t* labels,
                             int64_t first, int64_t count, int64_t cols, LogitGradients* to) {
  double taken[4][kLanes];
  TakeLanes(ends, first, count, taken);
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    const double weight = taken[0][r], q = taken[1][r], z = taken[3][r];
    const double seen = of.sum[4][r], max = of.max[r];
    const double share = ShareOf(taken[2][r], seen);
    const double log_sum = Log1p(of.sum[0][r] + (of.sum[1][r] - 1));
    const double loss = log_sum + (max - of.labelled[r]), slope = 2 * z * (max + log_sum);
    const double mass = q + share * seen + slope;  // the factor of softmax
    to->max[r] = max;
    to->factor[r] = weight * mass / (of.sum[0][r] + of.sum[1][r]);
    to->slope[r] = 0;
    to->constant[r] = -weight * share;
    // This is not written as mass * expm1(-loss) + ..., where `slope` would cancel.
    const double at_label = of.labelled[r] == -kInf<double> ? 0 : share;
    const double others = (share * seen + slope) * Exp<true>(-loss, 0.0) - at_label;
    to->there[r] = weight * (q * ExpMinusOne(-loss) + others);
  }
  for (int64_t r = 0; r < count; ++r) {
    const int32_t label = labels[first + r];
    const bool is_left_out = label < 0 || taken[0][r] == 0;
    // A NaN or an infinity spoils the whole row, hidden elements too.
    const bool is_spoiled = label >= cols || std::isnan(to->factor[r]);
    to->is_everywhere[r] = is_left_out || is_spoiled;
    if (is_left_out) {
      to->there[r] = 0;
    } else if (is_spoiled) {
      to->there[r] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

// Computes the gradients from the residuals of rows and the cotangents of lse - x_l, of lse, of the
// entropy and of mean (lse - x).
template <typename Op>
JK_INLINE void MakeKeptGradients(const RowEnds<Op>& ends, int64_t first, int64_t count,
                                 LogitGradients* to) {
  double taken[11][kLanes];
  TakeLanes(ends, first, count, taken);
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    const double max = taken[0][r], rest = taken[1][r], number = taken[2][r];
    const double sum = rest + number, mean = taken[3][r] / sum, seen = taken[5][r];
    const double labelled = taken[6][r], of_loss = taken[7][r], of_entropy = taken[9][r];
    const double share = ShareOf(taken[10][r], seen), others = taken[8][r] + share * seen;
    const double minus_loss = (labelled - max) - Log1p(rest + (number - 1));
    const double least = kLeastLogitExponent;
    const double difference = labelled - max < least ? least : labelled - max;
    to->max[r] = max;
    to->factor[r] = (of_loss + others + of_entropy * mean) / sum;
    to->slope[r] = -of_entropy / sum;
    to->constant[r] = -share;
    to->there[r] = of_loss * ExpMinusOne(minus_loss) +
                   Exp<true>(minus_loss, 0.0) * (others - of_entropy * (difference - mean)) -
                   (labelled == -kInf<double> ? 0 : share);
  }
  for (int64_t r = 0; r < count; ++r) {
    const double labelled = taken[6][r], of_loss = taken[7][r];
    const bool is_left_out =
        of_loss == 0 && taken[8][r] == 0 && taken[9][r] == 0 && taken[10][r] == 0;
    const bool is_unknown = of_loss != 0 && labelled != labelled;
    to->is_everywhere[r] = is_left_out || is_unknown;
    if (to->is_everywhere[r]) to->there[r] = is_left_out ? 0 : labelled;
  }
}

// A call, with loads of labels and stores of residuals and special results.
template <typename Op>
struct LogitCall {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const RowCall& call;
  int64_t cols = call.arrays.cols;
  const T* x = static_cast<const T*>(call.arrays.in[0]);
  T* out = static_cast<T*>(call.arrays.out);
  RowEnds<Op> ends = {call.scalars_in, call.scalars_out};

  // The element at the label if that is in columns [begin, end), else 0. Read it before results are
  // stored, which may overwrite x.
  JK_INLINE double LabelledOf(int64_t row, int64_t begin, int64_t end) const {
    const int64_t label = call.labels == nullptr ? -1 : call.labels[row];
    return label >= begin && label < end ? double(Widen(x[row * cols + label])) : 0;
  }
  // `labelled`, or NaN if label >= cols.
  JK_INLINE double Known(int64_t row, double labelled) const {
    return call.labels[row] < cols ? labelled : std::numeric_limits<double>::quiet_NaN();
  }
  // Stores the residuals of rows.
  JK_INLINE void StoreNumbers(int64_t first, int64_t count, const LogitRows& rows) const {
    for (int64_t r = 0; r < count; ++r) {
      ends.Store(first + r, C(rows.max[r]), 0);
      for (int s = 0; s < 5; ++s) ends.Store(first + r, C(rows.sum[s][r]), 1 + s);
      ends.Store(first + r, C(rows.labelled[r]), 6);
    }
  }
  // Replaces special results in columns [begin, end): at the label, or everywhere.
  JK_INLINE void StoreExceptions(int64_t row, int64_t begin, int64_t end, bool is_everywhere,
                                 double there) const {
    const int64_t label = call.labels[row];
    T value;
    Narrow(C(there), &value);
    if (is_everywhere) {
      std::fill(out + row * cols + begin, out + row * cols + end, value);
    } else if (label >= begin && label < end) {
      out[row * cols + label] = value;
    }
  }
};

template <typename Op>
JK_INLINE void MakeGradientsOf(const LogitCall<Op>& on, const LogitRows& rows, int64_t first,
                               int64_t count, LogitGradients* gradients) {
  if constexpr (Op::kSums == 0) {
    OnThisMachine<MakeKeptGradients<Op>>(on.ends, first, count, gradients);
  } else {
    OnThisMachine<MakeGradients<Op>>(rows, on.ends, on.call.labels, first, count, on.cols,
                                     gradients);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_CROSS_ENTROPY_OPS_H_
