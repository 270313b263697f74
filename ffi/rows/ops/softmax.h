// Softmax and its derivative.
#pragma once

#include "rows/ops/row_op.h"

namespace jaxkernels {

// y = exp(x - max) / sum exp(x - max)
template <typename A, Operation kOf = Operation::kSoftmaxForward>
struct SoftmaxForward : ForwardOp<A, kOf> {
  using typename ForwardOp<A, kOf>::C;
  using Row = typename A::Quotient;
  JK_OP static Row MakeRow(const auto& stats, const auto& /*given*/) { return Row(stats); }
  JK_OP static C FinishTerm(C term, C, const Row& row) { return row.OfTerm(term); }
  JK_OP static C Finish(const auto& in, const Row& row) { return row.Of(in[0]); }
};

// dx = y * (dy - sum(dy * y)). The Jacobian is symmetric, so the same formula maps the tangent of x
// to the tangent of y.
template <typename A>
struct SoftmaxGrad : LinearOp<A, Operation::kSoftmaxGrad> {
  JK_OP static auto Term(const auto& in, auto) { return in[0] * in[1]; }
  JK_OP static auto Finish(const auto& in, const auto& row) { return in[0] * (in[1] - row.sum); }
};

}  // namespace jaxkernels
