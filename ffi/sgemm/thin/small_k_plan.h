// The form kSmallK of the rung `thin`: how it cuts a product, and its cost model.
#pragma once

#include <cstdint>

#include "sgemm/plan.h"

namespace jaxkernels {

// ThinBytesOf returns the bytes of the operands and the result of one member of the batch.
inline double ThinBytesOf(const SgemmProblem& problem) {
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
  const auto k = static_cast<double>(problem.k);
  return 4 * (m * k + n * k + m * n);
}

void PlanSmallK(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan);

// CyclesOfSmallK returns the modelled time of `plan`, which PlanSmallK made, in cycles.
double CyclesOfSmallK(const SgemmProblem& problem, const DeviceLimits& limits, int64_t batch_count,
                      const SgemmPlan& plan);

}  // namespace jaxkernels
