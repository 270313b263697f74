// Plans a thin product: how the threads of a block are spread over lines of C and shares of k.
//
// Owns: the translation of a choice into plan fields. Must not know: the reasons of the choice
// (choice.h), CUDA.
#ifndef JAXKERNELS_SGEMM_THIN_PLAN_H_
#define JAXKERNELS_SGEMM_THIN_PLAN_H_

#include "core/device_limits.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"

namespace jaxkernels {

// PlanThin sets the fields that depend on the choice. The grid is that of any rung. split_k: as
// ChooseThin.
void PlanThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
              SgemmPlan& plan);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_PLAN_H_
