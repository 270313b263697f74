// The plan of a row in each tier: lanes, threads, blocks, bytes. plan.cc chooses the tier.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rows/plan.h"
#include "rows/smem_rules.h"

namespace jaxkernels {

inline int ScratchBytes(const RowProblem& problem) {
  return ReductionScratchBytes(problem.operation, problem.dtype);
}

// Resident blocks per SM, limited by threads, shared memory and registers.
inline int BlocksPerSm(const RowProblem& problem, int threads, int smem_bytes, int registers,
                       const DeviceLimits& limits) {
  const int by_registers = limits.registers_per_sm / (registers * threads);
  return std::min(limits.BlocksPerSm(threads, smem_bytes + ScratchBytes(problem)), by_registers);
}

inline int64_t BlocksOfWaves(int blocks_per_sm, const DeviceLimits& limits) {
  return int64_t{kWaves} * limits.sm_count * std::max(blocks_per_sm, 1);
}

// Grid size: `blocks_of_work`, but at most kWaves waves.
inline int64_t GridBlocks(int64_t blocks_of_work, int blocks_per_sm, const DeviceLimits& limits) {
  return std::clamp<int64_t>(blocks_of_work, 1, BlocksOfWaves(blocks_per_sm, limits));
}

inline int SmemRoom(const RowProblem& problem, const DeviceLimits& limits) {
  return limits.smem_per_block - ScratchBytes(problem);
}

// The first layout of the warp tier that covers `packs`, or -1.
int FindWarpShape(int64_t packs, Operation operation, DType dtype, bool aligned);
void PlanWarp(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan);

// Whether short rows are staged instead of using layout `warp_shape` (-1: no layout holds them).
bool PrefersStaged(const RowProblem& problem, const DeviceLimits& limits, const RowPlan& plan,
                   int warp_shape);
void PlanWarpStaged(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan);

// Resident blocks, and so rows, per SM in tier `block`; 0 if a block cannot hold a row.
int RowsOfBlocks(const RowProblem& problem, const DeviceLimits& limits);
void PlanBlock(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan);

// A row in shared memory: the blocks that share it and the resources of each.
struct SharedRow {
  int blocks = 0;  // 0: the row does not fit
  int64_t slots = 0;
  int64_t bytes = 0;
  int threads = 0;        // minimum per block
  int blocks_per_sm = 0;  // maximum
};
SharedRow ShareRow(const RowProblem& problem, int blocks, const DeviceLimits& limits);
// As ShareRow, with the cluster size that the rules choose.
SharedRow ShareRowOverCluster(const RowProblem& problem, const DeviceLimits& limits);
void PlanSharedRow(const RowProblem& problem, const SharedRow& row, const DeviceLimits& limits,
                   RowPlan& plan);

// Plans tier `block_uncached`, which keeps up to `kept_packs` packs of a row that it reads twice.
void PlanBlockUncached(const RowProblem& problem, const DeviceLimits& limits, int64_t kept_packs,
                       int threads, RowPlan& plan);
// Plans OneReadKernel, for operations with IsReadInLeaves.
void PlanOneRead(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan);
// Plans `block_uncached` for gathered inputs, with enough threads to have the whole row in flight.
void PlanGathered(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan);

// Plans tier `stream`, for the parts of an operation and for operations without sums. It keeps
// nothing, so it handles rows of any length.
void PlanStream(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan);

}  // namespace jaxkernels
