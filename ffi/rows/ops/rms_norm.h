// RMSNorm and its derivatives. The first input is x; the last value of an element is the scale of
// its column.
#pragma once

#include "rows/ops/row_op.h"

namespace jaxkernels {

template <typename A, Operation kOf>
struct RmsNormOp : RowOp<A, kOf> {
  using typename RowOp<A, kOf>::C;
  // r = 1 / sqrt(mean(x^2) + epsilon); in the gradient also r^2 mean(x scale dy).
  struct Row {
    C r, product;
  };
  JK_OP static C Term(const auto& in, C) { return in[0] * in[0]; }
  JK_OP static Row MakeRow(const auto& stats, const auto& given) {
    using Sum = typename A::Sum;
    const Sum cols = static_cast<Sum>(given.cols);
    const Sum square = Sum(1) / (stats.sum[0] / cols + given.scalar[0]);
    if constexpr (RmsNormOp::kSums == 1) return {C(A::Sqrt(square)), C(0)};
    return {C(A::Sqrt(square)), C(square * (stats.sum[RmsNormOp::kSums - 1] / cols))};
  }
};

// y = scale * r x
template <typename A>
struct RmsNormForward : RmsNormOp<A, Operation::kRmsNormForward> {
  JK_OP static auto Finish(const auto& in, const auto& row) { return in[0] * row.r * in[1]; }
};

// dx = r (scale dy - x r^2 mean(x scale dy))
template <typename A>
struct RmsNormGrad : RmsNormOp<A, Operation::kRmsNormGrad> {
  JK_OP static auto SecondTerm(auto, const auto& in, bool) { return in[0] * (in[2] * in[1]); }
  JK_OP static auto Finish(const auto& in, const auto& row) {
    return row.r * (in[2] * in[1] - in[0] * row.product);
  }
};

}  // namespace jaxkernels
