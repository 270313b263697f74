// The plan of a product on the tensor cores.
//
// Owns: how a choice becomes the fields of a plan. Must not know: why it was chosen (choice.h), how
// tiles are made again (PlanRepairs in ../plan.cc), CUDA.
#ifndef JAXKERNELS_SGEMM_TENSOR_PLAN_H_
#define JAXKERNELS_SGEMM_TENSOR_PLAN_H_

#include "core/device_limits.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"

namespace jaxkernels {

// The fields that do not follow from the tiles of C. split_k: as it was when the program was
// lowered, or 0. Returns the problem of the members that are made at once, to which the rest of the
// plan belongs.
SgemmProblem PlanTensor(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                        SgemmPlan& plan);

// The others, once tiles and grid are there as for any rung.
void FinishTensorPlan(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_PLAN_H_
