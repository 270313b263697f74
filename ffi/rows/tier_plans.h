// The plan of a row in each tier: lanes, threads, blocks, bytes. Which tier a row takes, and which
// serve it at all, is plan.cc's. From PlanBlockUncached on: long_row_plans.cc; before:
// tier_plans.cc.
#ifndef JAXKERNELS_ROWS_TIER_PLANS_H_
#define JAXKERNELS_ROWS_TIER_PLANS_H_

#include <cstdint>

#include "rows/plan.h"

namespace jaxkernels {

// The first layout of the warp tier that covers `packs`, or -1.
int FindWarpShape(int64_t packs, Operation operation, DType dtype, bool aligned);
// In layout plan.warp_shape.
void PlanWarp(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan);

// Whether short rows go through the shared memory of a warp, instead of layout `warp_shape` (-1:
// none holds them).
bool PrefersStaged(const SoftmaxProblem& problem, const SoftmaxPlan& plan, int warp_shape);
void PlanWarpStaged(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan);

// Blocks of the tier `block`, and so rows, on an SM at once; none where a block cannot hold a row.
int RowsOfBlocks(const SoftmaxProblem& problem, const DeviceLimits& limits);
// A block for each row.
void PlanBlock(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan);

// Shared memory of each of the blocks that share a row.
struct SharedRow {
  int blocks = 0;  // none: the row does not fit
  int64_t slots = 0;
  int64_t bytes = 0;
  int threads = 0;        // of a block, at least
  int blocks_per_sm = 0;  // at most
};
SharedRow ShareRow(const SoftmaxProblem& problem, int blocks, const DeviceLimits& limits);
// Over a cluster.
SharedRow ShareRowOverCluster(const SoftmaxProblem& problem, const DeviceLimits& limits);
// Tier `block_smem` or `cluster`.
void PlanSharedRow(const SoftmaxProblem& problem, const SharedRow& row, const DeviceLimits& limits,
                   SoftmaxPlan& plan);

// Tier `block_uncached`, which keeps up to `kept_packs` of a row, if it is read again.
void PlanBlockUncached(const SoftmaxProblem& problem, const DeviceLimits& limits,
                       int64_t kept_packs, int threads, SoftmaxPlan& plan);
// The same in leaves, for operations of which IsReadInLeaves.
void PlanOneRead(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan);
// The same for rows of inputs that are gathered: as many threads as have the row in flight at once.
void PlanGathered(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan);

// The parts of an operation: nothing is kept, so that rows of any length go one way.
void PlanStream(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_TIER_PLANS_H_
