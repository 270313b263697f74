// Row operations of cross entropy on the CPU: the terms of its sums, and kept terms.
// rows/ops/cross_entropy.h has the sums, the constants of a row and the gradients.
//
// Owns: these operations. Must not know: the loops over rows (row_drivers.h), XLA, threads.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/cpu/arithmetic.h"
#include "rows/ops/cross_entropy.h"

namespace jaxkernels {

// The last three sums are zero unless kAll. They are summed in C within a tile: their summands have
// one sign, so that no digits cancel.
template <typename T, Operation kOf, bool kAll>
struct LogitSums : LossOp<Cpu<T>, kOf> {
  using typename LossOp<Cpu<T>, kOf>::C;
  struct MoreSummands {
    C spread, total, seen;
  };
  static constexpr int kTermSums = kAll ? 5 : 2;
  static constexpr bool kCounts = true;
  static constexpr bool kHasNear = std::is_same_v<T, float>;

  JK_INLINE static C SecondTerm(C& term, const auto& /*in*/, bool is_of_max) {
    return Cpu<T>::TakeOutMax(term, is_of_max);
  }
  template <bool kHides>
  JK_INLINE static MoreSummands MoreTerms(C term, C x, C max) {
    if constexpr (!kHides) return {term * (x - max), kTotalScale * (x - max), 0};
    // The term of an infinite difference is 0.
    const C difference = Cpu<T>::Max(x - max, std::numeric_limits<C>::lowest());
    // This is a product because GCC 12 miscompiles `total += hidden ? 0 : difference`.
    const C seen = x == -kInf<C> ? C(0) : C(kTotalScale);
    return {term * difference, seen * difference, seen};
  }
};

// Stores the statistics of a row and the element at its label.
template <typename T, bool kAll>
struct CrossEntropyForward : LogitSums<T, Operation::kCrossEntropyForward, kAll> {
  struct Row {
    CpuComputeType<T> unused;
  };
  JK_INLINE static Row MakeRow(const auto&, const auto&) { return {}; }
};

// As CrossEntropyForward, and also stores the gradient.
template <typename T, bool kAll>
struct CrossEntropyForwardGrad : LogitSums<T, Operation::kCrossEntropyForwardGrad, kAll> {
  using C = CpuComputeType<T>;
  struct Row {
    C max, factor, constant, of_hidden;
    typename Cpu<T>::OtherColumns other;
  };
  JK_INLINE static Row MakeRow(const auto& of, const auto& given) {
    auto found = of;
    found.sum[0] /= of.of_max;  // LossRow does not read the spread
    const LossRow<Cpu<double>> row(found, given);
    const int cols = static_cast<int>(given.cols);
    return {C(row.max),
            C(row.factor / of.of_max),
            C(row.constant),
            std::isnan(row.factor) ? C(row.factor) : C(0),
            {row.is_left_out ? 0 : row.label, row.is_left_out ? cols : row.label + 1,
             row.is_left_out ? row.constant : row.AtLabel()}};
  }
  // The kept term of a hidden element (-inf) is -1 if the constant may be nonzero. Its result is a
  // row constant, because GCC 12 makes 0 of a product of NaN and a term that is selected to be 0.
  JK_INLINE static C Kept(C term, C x) { return kAll && x == -kInf<C> ? C(-1) : term; }
  JK_INLINE static C FinishTerm(C term, C, const Row& row) {
    if constexpr (!kAll) return term * row.factor + row.constant;
    return term < 0 ? row.of_hidden : term * row.factor + row.constant;
  }
  JK_INLINE static C Finish(const auto& in, const Row& row) {
    const C constant = kAll ? Visible<Cpu<T>>(in[0], row.constant) : row.constant;
    return Cpu<T>::ExpDifference(in[0], row.max) * row.factor + constant;
  }
};

}  // namespace jaxkernels
