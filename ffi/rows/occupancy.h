// Resident blocks per SM, and the grid size, of row kernels.
//
// Owns: their computation, for all tiers. Must not know: which tier a row takes.
#ifndef JAXKERNELS_ROWS_OCCUPANCY_H_
#define JAXKERNELS_ROWS_OCCUPANCY_H_

#include <algorithm>
#include <cstdint>

#include "rows/plan.h"

namespace jaxkernels {

// Shared memory of a block's reductions.
inline int ScratchBytes(const SoftmaxProblem& problem) {
  return ReductionScratchBytes(problem.operation, problem.dtype);
}

// Resident blocks per SM, limited by threads, shared memory and registers.
inline int BlocksPerSm(const SoftmaxProblem& problem, int threads, int smem_bytes, int registers,
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

// Maximum dynamic shared memory per block.
inline int SmemRoom(const SoftmaxProblem& problem, const DeviceLimits& limits) {
  return limits.smem_per_block - ScratchBytes(problem);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_OCCUPANCY_H_
