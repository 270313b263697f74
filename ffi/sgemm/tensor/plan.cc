#include "sgemm/tensor/plan.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/tensor/choice.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// All tiles of a member are recomputed if more than max(kFewTiles, tiles / kShareOfTiles) must be.
constexpr int64_t kFewTiles = 8, kShareOfTiles = 32;

// A product of one member tests once whether all its tiles will be recomputed. It tests between two
// launches, after twice the tiles that must be marked, rounded up to a multiple of the SMs. It
// tests only if these are at most 1 / kMostShareOfLook of all tiles, because the SMs run empty
// between two launches.
constexpr int64_t kMostShareOfLook = 4;

int64_t TilesBeforeLook(const SgemmProblem& problem, const DeviceLimits& limits,
                        const SgemmPlan& plan) {
  const int64_t tiles = plan.tiles_m * plan.tiles_n;
  if (problem.Batch() > 1 || plan.split_k > 1 || plan.most_marked_tiles >= tiles) return 0;
  const int64_t look = CeilDiv(2 * plan.most_marked_tiles, limits.sm_count) * limits.sm_count;
  return kMostShareOfLook * look <= tiles ? look : 0;
}

}  // namespace

SgemmProblem PlanTensor(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                        SgemmPlan& plan) {
  plan.block_m = plan.block_n = kTensorLines;
  plan.block_k = kTensorStepK;
  plan.thread_m = kTensorThreadM;
  plan.thread_n = kTensorThreadN;
  plan.block_threads = kTensorThreads;
  plan.stages = kTensorStages;
  plan.smem_bytes = kTensorSmemBytes;
  plan.blocks_per_sm = 1;
  plan.split_k = split_k > 0 ? split_k : static_cast<int>(SplitOfTensor(problem, limits));
  plan.k_per_split = plan.split_k > 1 ? KPerSplit(problem.k, plan.split_k) : problem.k;
  plan.pack_a = problem.HasAlignedRowsA() ? kFloatsOfPack : 1;
  plan.pack_b = problem.HasAlignedRowsB() ? kFloatsOfPack : 1;
  const SgemmProblem group = GroupOfTensor(problem, plan.split_k);
  plan.groups = CeilDiv(problem.batch[0].size, group.batch[0].size);
  plan.partial_elements =
      ScratchOf(group, plan.split_k).bytes / static_cast<int64_t>(sizeof(float));
  return group;
}

void FinishTensorPlan(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  // A block takes one tile, or one part of a tile, after the other.
  plan.grid_blocks = std::min<int64_t>(plan.grid_blocks, limits.sm_count);
  plan.sm_count = limits.sm_count;
  plan.compensated = IsCompensated(problem, limits, plan.split_k);
  const int64_t tiles = plan.tiles_m * plan.tiles_n;
  // An in-place result cannot be recomputed as a whole once a tile is stored.
  plan.most_marked_tiles = problem.adds_c ? tiles : std::max(kFewTiles, tiles / kShareOfTiles);
  plan.tiles_before_look = TilesBeforeLook(problem, limits, plan);
  plan.pack_c = problem.HasAlignedPairsC() ? 2 : 1;
}

}  // namespace jaxkernels
