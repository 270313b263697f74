// Plans a product on the tensor cores.
//
// Owns: the translation of a choice into plan fields. Must not know: the reasons of the choice
// (choice.h), how tiles are recomputed (PlanRepairs in ../plan.cc), CUDA.
#ifndef JAXKERNELS_SGEMM_TENSOR_PLAN_H_
#define JAXKERNELS_SGEMM_TENSOR_PLAN_H_

#include "core/device_limits.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"

namespace jaxkernels {

// PlanTensor sets the fields that do not depend on the number of tiles of C. It returns the problem
// of the members that run at once; the rest of the plan is made for that. split_k: its value when
// the program was lowered, or 0.
SgemmProblem PlanTensor(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                        SgemmPlan& plan);

// FinishTensorPlan sets the other fields, once tiles and grid are set as for any rung.
void FinishTensorPlan(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_PLAN_H_
