// Log-softmax and its derivatives.
#pragma once

#include <type_traits>

#include "rows/ops/row_op.h"

namespace jaxkernels {

// y = (x - max) - log(sum exp(x - max))
//
// A sum such as 1 + 1e-9 would lose the small term, and with it results near 0. So the terms of the
// maximum, which are exactly 1, are counted separately. Half types sum all terms: that is faster,
// and their results near 0 err by about 2^-24. (A CPU sums rows of up to 31 columns in double.)
template <typename A>
struct LogSoftmaxForward : ForwardOp<A, Operation::kLogSoftmaxForward> {
  using Base = ForwardOp<A, Operation::kLogSoftmaxForward>;
  using typename Base::C;
  struct Row {
    C max;
    typename A::LogOfSum log_sum;
  };

  // The count of maxima in this term, 1 or 0.
  JK_OP static C SecondTerm(C& term, const auto& /*in*/, bool is_of_max) {
    return A::TakeOutMax(term, is_of_max);
  }
  // Terms of the maximum become ordinary terms if there is a larger maximum.
  JK_OP static void Rescale(C (&sum)[Base::kSums], C factor, C /*difference*/) {
    if constexpr (Base::kSums == 2) {
      const C joining = factor == C(1) ? C(0) : sum[1];
      sum[0] += joining;
      sum[1] -= joining;
    }
    sum[0] *= factor;
  }
  JK_OP static Row MakeRow(const auto& stats, const auto& /*given*/) {
    return {stats.max, typename A::LogOfSum(stats)};
  }
  JK_OP static C Finish(const auto& in, const Row& row) {
    return row.log_sum.SubtractFrom(in[0], row.max);
  }
};

// dx = dy - exp(y) * sum(dy), where y <= 0, as log-softmax returns it
template <typename A>
struct LogSoftmaxGradOfY : LinearOp<A, Operation::kLogSoftmaxGrad> {
  JK_OP static auto Term(const auto& in, auto) { return in[1]; }
  JK_OP static auto Finish(const auto& in, const auto& row) {
    return A::Fma(-A::Exp(in[0]), row.sum, in[1]);
  }
};

// dx = dy - exp(x - max) * (sum(dy) / sum exp(x - max))
//
// Half types read x: their y is rounded, and exp(y) would multiply that error by |y|. float32 and
// float64 have a more exact y, so they save a maximum and a sum.
template <typename A>
struct LogSoftmaxGradOfX : ForwardOp<A, Operation::kLogSoftmaxGrad> {
  using typename ForwardOp<A, Operation::kLogSoftmaxGrad>::C;
  struct Row {
    C max, quotient;
  };
  static constexpr bool kKeepsTerm = A::kKeepsTermsOfHalf;
  JK_OP static auto SecondTerm(auto, const auto& in, bool /*is_of_max*/) { return in[1]; }
  JK_OP static void Rescale(auto (&sum)[2], auto factor, auto) { sum[0] *= factor; }
  JK_OP static Row MakeRow(const auto& stats, const auto& /*given*/) {
    return {stats.max, C(stats.sum[1] / stats.sum[0])};
  }
  JK_OP static auto FinishTerm(auto term, auto dy, const auto& row) {
    return A::Fma(-term, row.quotient, dy);
  }
  JK_OP static auto Finish(const auto& in, const auto& row) {
    return FinishTerm(A::ExpDifference(in[0], row.max), in[1], row);
  }
};

template <typename A>
using LogSoftmaxGrad = std::conditional_t<A::kIsHalf, LogSoftmaxGradOfX<A>, LogSoftmaxGradOfY<A>>;

}  // namespace jaxkernels
