#include "sgemm/plan.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/rung_choice.h"
#include "sgemm/tensor/plan.h"
#include "sgemm/thin/plan.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

const RungTile& TileOf(Algorithm rung) {
  switch (rung) {
    case Algorithm::kNaive:
      return kNaiveTile;
    case Algorithm::kBlockTile:
      return kSharedTile;
    default:
      return kRegisterTile;
  }
}

// Blocks with at most this k are staggered, if their tile gains by it. Blocks of equal length would
// otherwise store their short sums at the same time, wave after wave.
constexpr int64_t kMaxDepthStaggered = 512;

int StaggerOf(const SgemmPlan& plan, const DeviceLimits& limits) {
  const bool several_waves = plan.grid_blocks > int64_t{2} * limits.sm_count;
  const bool stores_often = several_waves && plan.k_per_split <= kMaxDepthStaggered;
  return stores_often && plan.blocks_per_sm == 2 ? kPipelinedTiles[plan.tile].stagger_cycles : 0;
}

// SetTile sets the fields that every tile has. Requires: plan.smem_bytes, which blocks_per_sm
// depends on.
template <typename Tile>
void SetTile(const Tile& tile, int block_k, const DeviceLimits& limits, SgemmPlan& plan) {
  plan.block_m = tile.block_m;
  plan.block_n = tile.block_n;
  plan.block_k = block_k;
  plan.thread_m = tile.thread_m;
  plan.thread_n = tile.thread_n;
  plan.block_threads = tile.Threads();
  plan.blocks_per_sm =
      std::min(tile.blocks_per_sm, limits.BlocksPerSm(tile.Threads(), plan.smem_bytes));
}

// PlanTile plans the kernel of a tile. `one`: how a batch member is summed.
void PlanTile(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& one,
              int index, SgemmPlan& plan) {
  const PipelinedTile& tile = kPipelinedTiles[index];
  plan.algorithm = Algorithm::kPipelined;
  plan.tile = index;
  plan.engine = EngineOf(problem, limits, tile);
  const bool a_k_major = !problem.trans_a, b_k_major = problem.trans_b;
  const PipelinedStages staging = StagesOf(tile, plan.engine, a_k_major, b_k_major);
  plan.slices = tile.slices;
  plan.stages = staging.stages;
  plan.smem_bytes = SmemBytesOf(tile, plan.engine, a_k_major, b_k_major);
  SetTile(tile, staging.block_k, limits, plan);
  plan.split_k = static_cast<int>(one.split_k);
  if (one.split_k == 1 && problem.k > kMaxDepthOfLaunch * tile.slices) {
    plan.launches = static_cast<int>(CeilDiv(problem.k, kDepthOfLaunch * tile.slices));
  }
  plan.k_per_split = KPerSplit(problem.k, one.split_k * plan.launches);
}

// PlanRepairs plans the recomputation of the 128 x 128 tiles of the rung `tensor`. It does not
// split k: tiles are many, or few of them are recomputed. If `tensor` compensates its sums, each
// launch sums little k.
void PlanRepairs(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  static_assert(kPipelinedTiles[kRepairTile].block_m == kTensorLines &&
                kPipelinedTiles[kRepairTile].block_n == kTensorLines);
  PlanTile(problem, limits, {kRepairTile, 1}, kRepairTile, plan);
  plan.launches = static_cast<int>(LaunchesOfRepairs(problem, limits));
  plan.k_per_split = KPerSplit(problem.k, plan.launches);
}

void PlanRung(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  const RungTile& tile = TileOf(plan.algorithm);
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

// PaddingCost is the cost of padding: a copy of an operand with rows at 16-byte boundaries.
struct PaddingCost {
  // Fraction of a product's time that TMA saves. Without and with padding, copies included:
  // H200 (4097, 4095, 4093), us (2026-11): 3159, 2797
  // H200 (8192, 50257, 768), us (2026-11): 14980, 12834
  // H200 2047^3, us (2026-11): 420, 384
  // H200 (1501, 1502, 1503), by slices, us (2026-11): 219, 200
  static constexpr double kSaved = 0.15;
  // Launch of the copy, and bytes that the memory moves in a cycle.
  static constexpr double kLaunchCycles = 5000;
  static constexpr double kBytesPerCycle = 2000;
  // Memory that padding may take without a request of the caller.
  static constexpr double kMaxBytes = 2.0 * (1 << 30);
};

// Members with a shared B and fewer rows of A than this become rows of one matrix: their own tiles
// would be mostly empty. A member with more rows keeps its own tiles, and the bits that it has
// alone.
constexpr int64_t kMaxRowsToFold = 64;

}  // namespace

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

SgemmProblem WithPadding(SgemmProblem problem, const DeviceLimits& limits, Algorithm algorithm) {
  if (RungOf(problem, limits, algorithm) != Algorithm::kPipelined) return problem;
  SgemmProblem padded = problem;
  padded.pad_a = static_cast<int>(-problem.PitchA() & (kFloatsOfPack - 1));
  padded.pad_b = static_cast<int>(-problem.PitchB() & (kFloatsOfPack - 1));
  const TileChoice one = ChooseOrder(padded, limits, 0);
  // Padding changes the engine, and with it the order in which slices sum. A member of slices
  // therefore gets the padding that it would get alone.
  const bool alone = kPipelinedTiles[one.tile].slices > 1 && !problem.for_batch;
  const int tile = alone ? one.tile : ChooseTile(padded, limits, one);
  if (EngineOf(padded, limits, kPipelinedTiles[tile]) != Engine::kTma) return problem;
  double cost = 0, bytes = 0;
  const auto add_copy = [&](int pad, int64_t elements, int64_t batch_count) {
    if (pad == 0) return;
    const double copied = 4.0 * elements * (alone ? 1 : batch_count);
    cost += PaddingCost::kLaunchCycles + 2 * copied / PaddingCost::kBytesPerCycle;
    bytes += copied;
  };
  add_copy(padded.pad_a, problem.m * problem.k, problem.batch.MatricesOf(&BatchDim::stride_a));
  add_copy(padded.pad_b, problem.k * problem.n, problem.batch.MatricesOf(&BatchDim::stride_b));
  const int64_t batch_count = alone ? 1 : problem.batch.Count();
  const double cycles = CyclesOf(problem, limits, {tile, one.split_k}, batch_count);
  const bool pays = cost < PaddingCost::kSaved * cycles && bytes <= PaddingCost::kMaxBytes;
  return pays ? padded : problem;
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
    const TileChoice one = ChooseOrder(problem, limits, split_k);
    PlanTile(problem, limits, one, ChooseTile(problem, limits, one), plan);
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
