// The logarithm of the sum of a row's exponentials, and its derivatives.
#pragma once

#include "rows/ops/row_op.h"

namespace jaxkernels {

// The sums for log sum exp(x). Terms are relative to the maximum if it is finite, so that inf - inf
// never makes a NaN. A row of -inf only has the sum 0 and the derivative 0.
//
// No term is a result, and terms far below the maximum, whose exponents are least exact, weigh
// least. So on a GPU float32 uses the hardware's exponential, as half types do.
template <typename A, Operation kOf>
struct LogSumExpOp : ForwardOp<A, kOf> {
  using typename ForwardOp<A, kOf>::C;
  JK_OP static C Reference(C max) {
    return max == -A::kInfinity ? C(0) : A::Min(max, A::kLargestFinite);
  }
  JK_OP static C Term(const auto& in, C max) { return A::ExpForSum(in[0], max); }
};

// y = max + log(sum exp(x - max)), one per row
template <typename A>
struct LogSumExpForward : LogSumExpOp<A, Operation::kLogSumExpForward> {
  struct Row {
    typename A::C scalars[1];
  };
  JK_OP static Row MakeRow(const auto& stats, const auto& /*given*/) {
    return {typename A::C(stats.max + A::Log(stats.sum[0]))};
  }
};

// dx = dy * exp(x - max) / sum exp(x - max), with one dy per row
template <typename A>
struct LogSumExpGrad : LogSumExpOp<A, Operation::kLogSumExpGrad> {
  using typename LogSumExpOp<A, Operation::kLogSumExpGrad>::C;
  struct Row {
    C max, factor;
  };
  JK_OP static C Term(const auto& in, C max) { return A::ExpOfInfinity(in[0], max); }
  JK_OP static Row MakeRow(const auto& stats, const auto& given) {
    return {stats.max, stats.sum[0] == 0 ? C(0) : C(given.scalar[0] / stats.sum[0])};
  }
  JK_OP static C FinishTerm(C term, C, const Row& row) { return term * row.factor; }
  JK_OP static C Finish(const auto& in, const Row& row) { return Term(in, row.max) * row.factor; }
};

}  // namespace jaxkernels
