// The limits of the rung `tensor`, its split of k, its cost model and its plan.
#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/rung_plans.h"

namespace jaxkernels {
namespace {

// TensorCost is fitted to 310 products. Five of them get a rung that is more than 5 % slower than
// the other; two of these are batches whose members would be slower alone. So do three of 150
// products with few tiles and large k, drawn after the cost of parts was fitted.
// H200, all launches of a call in a graph, us (2026-11):
// 512^3 26, 1024^3 37, 2048^3 113, 4096^3 732, 8192^3 5310
struct TensorCost {
  // Launch of five kernels instead of one, and of each repair kernel that finds nothing to do.
  static constexpr double kLaunchCycles = 15000;
  static constexpr double kIdleLaunchCycles = 2000;
  // Splitting reads an element once or twice, and writes the same size once. The rate is in bytes a
  // cycle.
  static constexpr double kBytesReadOnce = 8, kBytesReadTwice = 12;
  static constexpr double kSplitBytesPerCycle = 1800;
  // A tile of 128 x 128: from its last product to its last store; then each 64 k.
  static constexpr double kTileCycles = 15000;
  static constexpr double kStepCycles = 1700, kCompensatedStepCycles = 2400;
  // A part of a tile, likewise. Then the kernel that adds parts: its launch, and the bytes a cycle
  // of one of its blocks and of all.
  // H200, the splitting of operands, the product, the adding, us (2026-11):
  // (256, 256, 8192), 13 parts a tile 15.3, 13.4, 5.8
  // (128, 128, 65536), 57 62.0, 22.8, 13.9
  static constexpr double kPartCycles = 8000;
  static constexpr double kFinishCycles = 6300;
  static constexpr double kFinishBytesOfBlock = 24, kFinishBytesPerCycle = 2500;
  // SM time of a part in a batch that keeps all SMs busy: the part's sums leave the L2.
  static constexpr double kPartOfBatchCycles = 14500;
};

// A product of float16 pairs has a relative error of up to 2^-21. Repairs leave the same error
// (pair.cuh), and wgmma truncates. With fewer terms than this, k eps does not hide that.
constexpr int64_t kLeastDepth = 32;

// The scratch holds both operands again.
constexpr int64_t kMaxScratchBytes = int64_t{8} << 30;
constexpr int64_t kMaxScratchBytesUnasked = int64_t{4} << 30;
// A batch runs in at most this many groups: each is five launches or more.
constexpr int64_t kMaxGroups = 32;

// Tiles of C have 32-bit numbers, in lists of elements too.
constexpr int64_t kMaxTiles = int64_t{1} << 24;

// A part of k has at least kLeastSteps steps. In a batch parts cost time, and a batch member does
// not know the others. It gets the fewest parts with which two times are near their best. Its own
// time is at most kNearlyBest times that of the best number of parts. The time of the product
// kernel alone, in a large batch, is at most kMaxBatchSlowdown times that without parts.
// H200, alone and 16 of them, by number of parts, us (2026-11):
// (512, 512, 4096) 1 99, 354; 2 60, 375; 4 40, 377; 6 37, 400; 8 36, 428; cuBLAS 52, 679
// (256, 256, 4096) 1 91, 192; 4 33, 149; 10 27, 160; 24 27, 195; cuBLAS 23, 234
constexpr int64_t kLeastSteps = 4;
constexpr double kNearlyBest = 1.1, kMaxBatchSlowdown = 1.3;

int64_t TilesOfC(const SgemmProblem& problem) {
  return CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines);
}

// Sums of more k than this are compensated if a batch member has no more tiles, or parts of tiles,
// than the device has SMs. Other kernels would split k there, and have smaller errors. With many
// tiles compensation would cost a seventh of the speed.
// H200, uniform [0, 1), largest error, plain and compensated by force (2026-11):
// 1024^3 4.8e-7, 2.9e-7
// 4096^3 7.5e-7, 2.7e-7
// H200, all launches, us (2026-11): 4096^3 757, 860
constexpr int64_t kMaxDepthPlain = 1024;

// Parts of k may be twice as deep, because the addition of their sums is compensated.
// H200, parts of up to 2048 of k, plain, largest error, uniform, lognormal and normal with
// outliers, and cuBLAS's (2026-11):
// (256, 256, 8192) 3.8e-7, 4.4e-7, 6.2e-7; 4.7e-7, 5.7e-7, 1.0e-6
// (1024, 1024, 8192) 4.1e-7, 4.7e-7, 7.8e-7; 1.5e-6, 1.7e-6, 4.5e-6
// H200, plain and compensated, us (2026-11):
// (308, 722, 14203) NT, 6 parts a tile 87, 94
constexpr int64_t kMaxDepthPlainPart = 2048;

bool IsCompensated(const SgemmProblem& problem, const DeviceLimits& limits, int64_t split_k) {
  return KPerSplit(problem.k, split_k) > (split_k > 1 ? kMaxDepthPlainPart : kMaxDepthPlain) &&
         TilesOfC(problem) * split_k <= limits.sm_count;
}

double StepCycles(const SgemmProblem& problem, const DeviceLimits& limits, int64_t split_k) {
  return IsCompensated(problem, limits, split_k) ? TensorCost::kCompensatedStepCycles
                                                 : TensorCost::kStepCycles;
}

// CyclesInBatch is the SM time of a tile's product while all SMs are busy.
double CyclesInBatch(const SgemmProblem& problem, const DeviceLimits& limits, int64_t split_k) {
  const auto steps = static_cast<double>(CeilDiv(problem.k, kTensorStepK));
  const double around =
      split_k > 1 ? split_k * TensorCost::kPartOfBatchCycles : TensorCost::kTileCycles;
  return around + steps * StepCycles(problem, limits, split_k);
}

TensorScratch ScratchOf(const SgemmProblem& problem, int64_t split_k) {
  return MakeTensorScratch(problem.m, problem.n, problem.k, problem.batch, split_k);
}

// GroupOfTensor returns the batch members that run at once: all of them, or a share of the
// outermost dimension. It is the largest share whose scratch is within the bound for calls that do
// not name the rung, or a 32nd if none is. The last group may have fewer members.
SgemmProblem GroupOfTensor(const SgemmProblem& problem, int64_t split_k) {
  const int64_t size = problem.batch.dim[0].size;
  SgemmProblem group = problem;
  for (int64_t groups = 1; groups <= std::min(size, kMaxGroups); ++groups) {
    group.batch.dim[0].size = CeilDiv(size, groups);
    if (ScratchOf(group, split_k).bytes <= kMaxScratchBytesUnasked) break;
  }
  return group;
}

// All tiles of a batch member are recomputed if more than max(kFewTiles, tiles / kShareOfTiles)
// must be.
constexpr int64_t kFewTiles = 8, kShareOfTiles = 32;

// A product without a batch tests once whether all its tiles will be recomputed. It tests between
// two launches, after twice the tiles that must be flagged, rounded up to a multiple of the SMs. It
// tests only if these are at most 1 / kMaxProbeShare of all tiles, because the SMs run empty
// between two launches.
constexpr int64_t kMaxProbeShare = 4;

int64_t ProbeTiles(const SgemmProblem& problem, const DeviceLimits& limits, const SgemmPlan& plan) {
  const int64_t tiles = plan.tiles_m * plan.tiles_n;
  if (problem.batch.Count() > 1 || plan.split_k > 1 || plan.max_flagged_tiles >= tiles) return 0;
  const int64_t probe = CeilDiv(2 * plan.max_flagged_tiles, limits.sm_count) * limits.sm_count;
  return kMaxProbeShare * probe <= tiles ? probe : 0;
}

}  // namespace

bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k) {
  if (!limits.has_wgmma || problem.m == 0 || problem.n == 0 || problem.batch.Count() == 0)
    return false;
  if (problem.k < kLeastDepth || problem.k > kTensorMaxDepth) return false;
  const int64_t splits = split_k > 0 ? split_k : SplitOfTensor(problem, limits);
  const TensorScratch scratch = ScratchOf(GroupOfTensor(problem, splits), splits);
  return scratch.tiles > 0 && scratch.tiles <= kMaxTiles &&
         scratch.bytes <= (by_name ? kMaxScratchBytes : kMaxScratchBytesUnasked);
}

int64_t SplitOfTensor(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t batch_count = problem.BatchCountForOrder();
  const int64_t steps = CeilDiv(problem.k, kTensorStepK);
  const int64_t most =
      std::min(limits.sm_count / (TilesOfC(problem) * batch_count), steps / kLeastSteps);
  const auto cycles_of = [&](int64_t split) {
    return CyclesOfTensor(problem, limits, batch_count, split);
  };
  const auto is_cheap = [&](int64_t split) {
    return problem.for_batch || CyclesInBatch(problem, limits, split) <=
                                    kMaxBatchSlowdown * CyclesInBatch(problem, limits, 1);
  };
  double least = cycles_of(1);
  for (int64_t split = 2; split <= most; ++split) {
    if (is_cheap(split)) least = std::min(least, cycles_of(split));
  }
  int64_t fewest = 1;
  while (!is_cheap(fewest) || cycles_of(fewest) > kNearlyBest * least) ++fewest;
  return CeilDiv(steps, CeilDiv(steps, fewest));  // no part is empty
}

double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t batch_count,
                      int64_t split_k) {
  const int64_t tiles = TilesOfC(problem) * batch_count;
  const int64_t waves = CeilDiv(tiles * split_k, limits.sm_count);
  const auto steps = static_cast<double>(CeilDiv(CeilDiv(problem.k, kTensorStepK), split_k));
  const auto bytes_of = [&](bool k_major) {
    return k_major ? TensorCost::kBytesReadOnce : TensorCost::kBytesReadTwice;
  };
  const double bytes_of_k =
      problem.m * bytes_of(!problem.trans_a) + problem.n * bytes_of(problem.trans_b);
  const double step = StepCycles(problem, limits, split_k);
  const double before =
      TensorCost::kLaunchCycles + bytes_of_k * problem.k * batch_count /
                                      (TensorCost::kSplitBytesPerCycle * limits.MemoryRate());
  if (split_k == 1) {
    const auto idle_launches = static_cast<double>(LaunchesOfRepairs(problem, limits) - 1);
    return before + idle_launches * TensorCost::kIdleLaunchCycles +
           waves * (TensorCost::kTileCycles + steps * step);
  }
  const double rate = std::min(TensorCost::kFinishBytesPerCycle,
                               TensorCost::kFinishBytesOfBlock * kWarpsOfTensorTile * tiles);
  return before + waves * (TensorCost::kPartCycles + steps * step) + TensorCost::kFinishCycles +
         static_cast<double>(tiles * split_k * kTensorTileBytes) / rate;
}

int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (IsCompensated(problem, limits, 1)) return CeilDiv(problem.k, kMaxDepthPlain);
  return problem.k > kMaxDepthOfLaunch ? CeilDiv(problem.k, kDepthOfLaunch) : 1;
}

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
  plan.groups = CeilDiv(problem.batch.dim[0].size, group.batch.dim[0].size);
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
  plan.max_flagged_tiles = problem.adds_c ? tiles : std::max(kFewTiles, tiles / kShareOfTiles);
  plan.probe_tiles = ProbeTiles(problem, limits, plan);
  plan.pack_c = problem.HasAlignedPairsC() ? 2 : 1;
}

}  // namespace jaxkernels
