// Decides whether the rung `tensor` can run a product, models its time, and plans it.
//
// Owns: the limits of the rung, the split of k, the cost model and the plan fields that depend on
// them. Choices depend on m, n, k, the transposes and the device, with for_batch also on the batch.
// Must not know: CUDA, other rungs, how tiles are recomputed (PlanRepairs in ../plan.cc).
#ifndef JAXKERNELS_SGEMM_TENSOR_PLAN_H_
#define JAXKERNELS_SGEMM_TENSOR_PLAN_H_

#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// CanUseTensor tells whether the rung can run. It needs a GPU of compute capability 9.0, code with
// its instructions, 32 to 65536 k, and scratch within a bound. The bound is higher if the caller
// names the rung. split_k: its value when the program was lowered, or 0.
bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k);

// SplitOfTensor returns the number of parts of k, whose sums are added in order. It is
// above one only if all parts of a batch member run at once. No part is empty.
int64_t SplitOfTensor(const SgemmProblem& problem, const DeviceLimits& limits);

// CyclesOfTensor estimates the time of `batch_count` batch members, in the cycles of tile_choice.h.
double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t batch_count,
                      int64_t split_k);

// LaunchesOfRepairs returns the launches of the FFMA kernel that recomputes tiles. Each sums a part
// of k. With split-k that kernel does not run.
int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits);

// PlanTensor sets the fields that do not depend on the number of tiles of C. It returns the problem
// of the batch members that run at once; the rest of the plan is made for that. split_k: its value
// when the program was lowered, or 0.
SgemmProblem PlanTensor(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                        SgemmPlan& plan);

// FinishTensorPlan sets the other fields, once tiles and grid are set as for any rung.
void FinishTensorPlan(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_PLAN_H_
