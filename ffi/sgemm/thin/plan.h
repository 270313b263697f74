// Decides whether the rung `thin` can run a product, models its time, and plans it.
//
// Owns: how a product is cut, and the cost model. The order of summation depends on m, n, k, the
// transposes and the device, unless the problem sets for_batch. With a K-major long side it also
// depends on whether rows start at 16-byte boundaries. Must not know: CUDA, other rungs.
#ifndef JAXKERNELS_SGEMM_THIN_PLAN_H_
#define JAXKERNELS_SGEMM_THIN_PLAN_H_

#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"

namespace jaxkernels {

// IsThin tells whether any form serves: k is small (the limit is higher if one side has few lines),
// or one side has very few lines.
bool IsThin(const SgemmProblem& problem);

// SumsInOrder tells whether each element is one chain of FFMA in the order of k. The pipelined rung
// also sums up to 64 k in this order, because it neither splits nor slices them.
bool SumsInOrder(const SgemmProblem& problem);

// CyclesOfThin estimates the time of `batch_count` batch members, in the cycles of tile_choice.h.
double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t batch_count);

// PlanThin sets the fields that depend on the form. The grid is that of any rung. split_k: its
// value when the program was lowered, or 0.
void PlanThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
              SgemmPlan& plan);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_PLAN_H_
