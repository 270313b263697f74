#include "sgemm/plan.h"

#include "core/ceil_div.h"
#include "sgemm/rung_plans.h"

namespace jaxkernels {
namespace {

// Blocks with at most this k are staggered, if their tile gains by it. Blocks of equal length would
// otherwise store their short sums at the same time, wave after wave.
constexpr int64_t kMaxDepthStaggered = 512;

int StaggerOf(const SgemmPlan& plan, const DeviceLimits& limits) {
  const bool several_waves = plan.grid_blocks > int64_t{2} * limits.sm_count;
  const bool stores_often = several_waves && plan.k_per_split <= kMaxDepthStaggered;
  return stores_often && plan.blocks_per_sm == 2 ? kPipelinedTiles[plan.tile].stagger_cycles : 0;
}

void PlanRung(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  const RungTile& tile = plan.algorithm == Algorithm::kNaive       ? kNaiveTile
                         : plan.algorithm == Algorithm::kBlockTile ? kSharedTile
                                                                   : kRegisterTile;
  SetTile(tile, tile.block_k, limits, plan);
  plan.k_per_split = problem.k;
  const bool loads_packs = tile.thread_m > 1;
  plan.pack_a = loads_packs && problem.HasAlignedRowsA() ? kFloatsOfPack : 1;
  plan.pack_b = loads_packs && problem.HasAlignedRowsB() ? kFloatsOfPack : 1;
}

// A thread of ReduceSplits takes a pack of elements from this many elements on. Fewer are spread
// over more threads.
constexpr int64_t kMinElementsInPacks = 1 << 18;

int ReducePackOf(const SgemmProblem& problem) {
  const int64_t elements = problem.m * problem.n * problem.batch.Count();
  const bool in_packs = problem.aligned_c && elements % kFloatsOfPack == 0;
  return in_packs && elements >= kMinElementsInPacks ? kFloatsOfPack : 1;
}

// FinishPlan sets the fields that depend on the tile. Returns the error if there is no plan.
std::string FinishPlan(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  plan.pad_a = problem.pad_a;
  plan.pad_b = problem.pad_b;
  plan.tiles_m = CeilDiv(problem.m, plan.block_m);
  plan.tiles_n = CeilDiv(problem.n, plan.block_n);
  const int64_t batch = problem.batch.Count();
  plan.grid_blocks = plan.tiles_m * plan.tiles_n * plan.cluster_blocks * plan.split_k * batch;
  if (plan.grid_blocks >= int64_t{1} << 31) {
    return "the grid would have " + std::to_string(plan.grid_blocks) +
           " blocks, more than a GPU takes";
  }
  if (plan.algorithm == Algorithm::kTensor) {
    FinishTensorPlan(problem, limits, plan);
    return "";
  }
  if (plan.algorithm == Algorithm::kPipelined) {
    plan.sm_count = limits.sm_count;
    plan.stagger_cycles = StaggerOf(plan, limits);
  }
  if (plan.split_k > 1) plan.partial_elements = problem.m * problem.n * plan.split_k * batch;
  if (problem.k == 0) plan.launches = 0;
  if (plan.split_k > 1 || problem.k == 0) plan.reduce_pack = ReducePackOf(problem);
  if (plan.algorithm == Algorithm::kThin) return "";
  const bool stores_packs = plan.thread_n >= kFloatsOfPack;
  plan.pack_c = stores_packs && problem.HasAlignedRowsC() ? kFloatsOfPack : 1;
  return "";
}

// Members with a shared B and fewer rows of A than this become rows of one matrix: their own tiles
// would be mostly empty. A member with more rows keeps its own tiles, and the bits that it has
// alone.
constexpr int64_t kMaxRowsToFold = 64;

// ThinPays considers the whole batch if both rungs sum in the same order.
bool ThinPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (!IsThin(problem)) return false;
  const int64_t batch_count =
      SumsInOrder(problem) ? problem.batch.Count() : problem.BatchCountForOrder();
  return CyclesOfThin(problem, limits, batch_count) <
         CyclesOfPipelinedIfThin(problem, limits, batch_count);
}

bool TensorPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t batch_count = problem.BatchCountForOrder();
  const double cycles =
      CyclesOfTensor(problem, limits, batch_count, SplitOfTensor(problem, limits));
  if (IsThin(problem) && CyclesOfThin(problem, limits, batch_count) <= cycles) return false;
  return cycles < CyclesOfPipelined(problem, limits, batch_count);
}

}  // namespace

Algorithm RungOf(const SgemmProblem& asked_problem, const DeviceLimits& limits, Algorithm asked,
                 int split_k) {
  SgemmProblem problem = asked_problem;
  problem.aligned_a = problem.aligned_b = true;  // not known when a program is lowered
  switch (asked) {
    case Algorithm::kTensor:
      return CanUseTensor(problem, limits, true, split_k) ? asked : Algorithm::kPipelined;
    case Algorithm::kThin:
      return IsThin(problem) ? asked : Algorithm::kPipelined;
    case Algorithm::kAuto:
      if (CanUseTensor(problem, limits, false, split_k) && TensorPays(problem, limits)) {
        return Algorithm::kTensor;
      }
      return ThinPays(problem, limits) ? Algorithm::kThin : Algorithm::kPipelined;
    default:
      return asked;
  }
}

SgemmProblem WithTallRows(SgemmProblem problem) {
  // B lacks the one batch dimension: it is A's, so that the matrices of A are contiguous.
  const bool shared_b = problem.batch.dims == 1 && problem.batch.dim[0].stride_b == 0;
  if (shared_b && !problem.trans_a && problem.m < kMaxRowsToFold) {
    problem.m *= problem.batch.dim[0].size;
    problem.batch.dims = 0;
    problem.batch.dim[0] = {};
  }
  return problem;
}

SgemmPlanResult PlanSgemm(const SgemmProblem& problem, const DeviceLimits& limits,
                          Algorithm algorithm, int split_k) {
  SgemmPlanResult result;
  SgemmPlan& plan = result.plan;
  plan.algorithm = RungOf(problem, limits, algorithm, split_k);
  if (split_k < 0 || split_k > kMaxSplit) {
    result.error = "split_k must be between 0 and " + std::to_string(kMaxSplit) + ", got " +
                   std::to_string(split_k);
    return result;
  }
  SgemmProblem at_once = problem;
  if (plan.algorithm == Algorithm::kPipelined) {
    // A program lowered for `tensor` has scratch for its groups, not for split-k sums.
    if (algorithm == Algorithm::kTensor && split_k > 0) split_k = 1;
    PlanPipelined(problem, limits, split_k, plan);
  } else if (plan.algorithm == Algorithm::kThin && problem.pad_a + problem.pad_b == 0) {
    PlanThin(problem, limits, split_k, plan);
  } else if (plan.algorithm == Algorithm::kTensor) {
    at_once = PlanTensor(problem, limits, split_k, plan);
    if (plan.split_k == 1) {
      PlanRepairs(at_once, limits, result.repairs);
      result.error = FinishPlan(at_once, limits, result.repairs);
    }
  } else if (split_k > 1) {
    result.error = std::string(NameOf(plan.algorithm)) +
                   " does not split k; got split_k=" + std::to_string(split_k);
  } else if (problem.pad_a + problem.pad_b > 0) {
    result.error = std::string(NameOf(algorithm)) + " reads rows without padding only";
  } else {
    PlanRung(problem, limits, plan);
  }
  if (result.error.empty()) result.error = FinishPlan(at_once, limits, plan);
  return result;
}

}  // namespace jaxkernels
