// Plans for rows that are not kept on chip: the second half of tier_plans.h, by the rules of
// long_row_rules.h.
#include <algorithm>

#include "core/ceil_div.h"
#include "rows/long_row_rules.h"
#include "rows/occupancy.h"
#include "rows/tier_plans.h"

namespace jaxkernels {

void PlanBlockUncached(const SoftmaxProblem& problem, const DeviceLimits& limits,
                       int64_t kept_packs, int threads, SoftmaxPlan& plan) {
  const int pack_bytes = kPackBytes * InputsOf(problem.operation);
  const int64_t room = SmemRoom(problem, limits) / pack_bytes;
  plan.tier = Tier::kBlockUncached;
  plan.kept_packs =
      StoresElements(problem.operation) ? static_cast<int>(std::min(kept_packs, room)) : 0;
  plan.smem_bytes = plan.kept_packs * pack_bytes;
  plan.block_threads = threads;
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = BlocksPerSm(problem, threads, plan.smem_bytes, kLongRowRegisters, limits);
  plan.grid_blocks = GridBlocks(problem.rows, plan.blocks_per_sm, limits);
}

namespace {

// Resident blocks of OneReadKernel per SM.
int ReadBlocksPerSm(int warps, const DeviceLimits& limits) {
  return std::min(limits.registers_per_sm / (32 * kOneReadRegisters * warps), limits.blocks_per_sm);
}

// Warps per block that minimise the makespan, given the leaves per block. A block takes
// CeilDiv(leaves, warps) iterations plus kReadHalfTurnsOfRow half iterations.
int WarpsForLeaves(int64_t leaves, int64_t blocks, int most, const DeviceLimits& limits) {
  int best = 1;
  int64_t least = INT64_MAX;
  for (int warps = 1; warps <= std::min<int64_t>(leaves, most); ++warps) {
    const int64_t at_once = int64_t{limits.sm_count} * ReadBlocksPerSm(warps, limits);
    const int64_t time =
        CeilDiv(blocks, at_once) * (2 * CeilDiv(leaves, warps) + kReadHalfTurnsOfRow);
    if (time <= least) best = warps, least = time;
  }
  return best;
}

}  // namespace

void PlanOneRead(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  constexpr int64_t kTurn = int64_t{32} * kOneReadPacks;
  // The window can begin almost a cache line before the row.
  const int64_t packs = SmemSlots(MaxPacksOfRow(problem.cols, plan.pack, problem.offset), 1);
  plan.tier = Tier::kBlockUncached;
  plan.leaf_turns = static_cast<int>(CeilDiv(packs, kTurn * kMostReadLeaves));
  const int64_t leaves = CeilDiv(packs, kTurn * plan.leaf_turns);
  const int64_t blocks_at_once = int64_t{limits.sm_count} * ReadBlocksPerSm(kMostReadWarps, limits);
  while (plan.cluster_blocks < std::min(kMostReadBlocks, limits.cluster_blocks) &&
         plan.cluster_blocks * kMostReadWarps < leaves &&
         2 * plan.cluster_blocks * problem.rows <= blocks_at_once) {
    plan.cluster_blocks *= 2;
  }
  const bool has_most_blocks = plan.cluster_blocks == kMostReadBlocks;
  plan.block_threads =
      32 * WarpsForLeaves(CeilDiv(leaves, plan.cluster_blocks), problem.rows * plan.cluster_blocks,
                          has_most_blocks ? kMostReadWarpsOfFew : kMostReadWarps, limits);
  plan.lanes = plan.block_threads * plan.cluster_blocks;
  plan.blocks_per_sm = ReadBlocksPerSm(plan.block_threads / 32, limits);
  plan.grid_blocks =
      std::clamp<int64_t>(problem.rows, 1, INT32_MAX / kMostReadBlocks) * plan.cluster_blocks;
}

void PlanGathered(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const int64_t packs = SmemSlots(MaxPacksOfRow(problem.cols, plan.pack, problem.offset), 1);
  const int packs_of_warp = 32 * (kUncachedPacksInFlight / InputsOf(problem.operation));
  const int64_t threads = 32 * CeilDiv(packs, packs_of_warp);
  PlanBlockUncached(
      problem, limits, packs,
      static_cast<int>(std::clamp<int64_t>(threads, kLeastGatheringThreads, kUncachedThreads)),
      plan);
}

void PlanStream(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const int64_t packs =
      MaxPacksOfRow(problem.cols, plan.pack, problem.offset) * InputsOf(problem.operation);
  plan.tier = Tier::kStream;
  plan.part = problem.part;
  plan.warp_shape = -1;
  plan.block_threads = kStreamThreads;
  plan.lanes = packs <= kMostPacksOfStreamingLanes  ? kStreamLanes
               : packs <= kMostPacksOfStreamingWarp ? 32
                                                    : kStreamThreads;
  plan.blocks_per_sm = BlocksPerSm(problem, kStreamThreads, 0, kLongRowRegisters, limits);
  plan.branches = 1;
  if (problem.part != Part::kStatistics && plan.lanes == kStreamThreads) {
    plan.branches = static_cast<int>(CeilDiv(packs, kStreamPartPacks));
  }
  const int64_t blocks = CeilDiv(problem.rows * plan.branches, kStreamThreads / plan.lanes);
  plan.grid_blocks = GridBlocks(blocks, plan.blocks_per_sm, limits);
}

}  // namespace jaxkernels
