#include "sgemm/tensor/choice.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// TensorCost is fitted to 310 products. Five of them get a rung that is more than 5 % slower than
// the other (README.md). So do three of 150 products with few tiles and large k, drawn after the
// cost of parts was fitted.
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
  // (308, 722, 14203) NT, 6 43.4, 43.8, 6.3
  // (1024, 1024, 2048), 2 14.8, 21.4, 5.7
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

// A part of k has at least kLeastSteps steps. In a batch parts cost time, and a member does not
// know the others. It gets the fewest parts with which two times are near their best. Its own time
// is at most kNearlyBest times that of the best number of parts. The time of the product kernel
// alone, in a large batch, is at most kMostOfBatch times that without parts.
// H200, alone and 16 of them, by number of parts, us (2026-11):
// (512, 512, 4096) 1 99, 354; 2 60, 375; 4 40, 377; 6 37, 400; 8 36, 428; cuBLAS 52, 679
// (256, 256, 4096) 1 91, 192; 4 33, 149; 10 27, 160; 24 27, 195; cuBLAS 23, 234
// (1024, 1024, 1024), in an earlier form, 1 39, 342; 2 35, 426
constexpr int64_t kLeastSteps = 4;
constexpr double kNearlyBest = 1.1, kMostOfBatch = 1.3;

int64_t TilesOfMember(const SgemmProblem& problem) {
  return CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines);
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

}  // namespace

bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k) {
  if (!limits.has_wgmma || problem.m == 0 || problem.n == 0 || problem.Batch() == 0) return false;
  if (problem.k < kLeastDepth || problem.k > kTensorMostDepth) return false;
  const int64_t splits = split_k > 0 ? split_k : SplitOfTensor(problem, limits);
  const TensorScratch scratch = ScratchOf(GroupOfTensor(problem, splits), splits);
  return scratch.tiles > 0 && scratch.tiles <= kMaxTiles &&
         scratch.bytes <= (by_name ? kMaxScratchBytes : kMaxScratchBytesUnasked);
}

int64_t SplitOfTensor(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t members = problem.for_batch ? problem.Batch() : 1;
  const int64_t steps = CeilDiv(problem.k, kTensorStepK);
  const int64_t most =
      std::min(limits.sm_count / (TilesOfMember(problem) * members), steps / kLeastSteps);
  const auto cycles_of = [&](int64_t split) {
    return CyclesOfTensor(problem, limits, members, split);
  };
  const auto is_cheap = [&](int64_t split) {
    return problem.for_batch || CyclesInBatch(problem, limits, split) <=
                                    kMostOfBatch * CyclesInBatch(problem, limits, 1);
  };
  double least = cycles_of(1);
  for (int64_t split = 2; split <= most; ++split) {
    if (is_cheap(split)) least = std::min(least, cycles_of(split));
  }
  int64_t fewest = 1;
  while (!is_cheap(fewest) || cycles_of(fewest) > kNearlyBest * least) ++fewest;
  return CeilDiv(steps, CeilDiv(steps, fewest));  // no part is empty
}

SgemmProblem GroupOfTensor(const SgemmProblem& problem, int64_t split_k) {
  const int64_t size = problem.batch[0].size;
  SgemmProblem group = problem;
  for (int64_t groups = 1; groups <= std::min(size, kMaxGroups); ++groups) {
    group.batch[0].size = CeilDiv(size, groups);
    if (ScratchOf(group, split_k).bytes <= kMaxScratchBytesUnasked) break;
  }
  return group;
}

double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members,
                      int64_t split_k) {
  const int64_t tiles = TilesOfMember(problem) * members;
  const int64_t waves = CeilDiv(tiles * split_k, limits.sm_count);
  const auto steps = static_cast<double>(CeilDiv(CeilDiv(problem.k, kTensorStepK), split_k));
  const auto bytes_of = [&](bool along_k) {
    return along_k ? TensorCost::kBytesReadOnce : TensorCost::kBytesReadTwice;
  };
  const double bytes_of_k =
      problem.m * bytes_of(!problem.trans_a) + problem.n * bytes_of(problem.trans_b);
  const double step = StepCycles(problem, limits, split_k);
  const double before = TensorCost::kLaunchCycles +
                        bytes_of_k * problem.k * members / TensorCost::kSplitBytesPerCycle;
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

bool IsCompensated(const SgemmProblem& problem, const DeviceLimits& limits, int64_t split_k) {
  return KPerSplit(problem.k, split_k) > (split_k > 1 ? kMaxDepthPlainPart : kMaxDepthPlain) &&
         TilesOfMember(problem) * split_k <= limits.sm_count;
}

int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (IsCompensated(problem, limits, 1)) return CeilDiv(problem.k, kMaxDepthPlain);
  return problem.k > kMaxDepthOfLaunch ? CeilDiv(problem.k, kDepthOfLaunch) : 1;
}

TensorScratch ScratchOf(const SgemmProblem& problem, int64_t split_k) {
  return MakeTensorScratch(problem.m, problem.n, problem.k, problem.MembersOf(&BatchDim::stride_a),
                           problem.MembersOf(&BatchDim::stride_b), problem.Batch(), split_k);
}

}  // namespace jaxkernels
