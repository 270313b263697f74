#include "sgemm/tensor/choice.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// Fitted to 310 products, of which five get a rung that is more than 5 % slower than the other
// (README.md).
// H200, all launches of a call in a graph, us (2026-11):
// 512^3 26, 1024^3 37, 2048^3 113, 4096^3 732, 8192^3 5310
struct TensorCost {
  // Starting five kernels instead of one, and those of repairs that find nothing to do.
  static constexpr double kLaunchCycles = 15000;
  static constexpr double kIdleLaunchCycles = 2000;
  // Splitting reads an element once or twice, and writes as much once; so many bytes a cycle.
  static constexpr double kBytesReadOnce = 8, kBytesReadTwice = 12;
  static constexpr double kSplitBytesPerCycle = 1800;
  // A tile of 128 x 128: from its last product to its last store, and 64 of k.
  static constexpr double kTileCycles = 15000;
  static constexpr double kStepCycles = 1700, kCompensatedStepCycles = 2400;
  // A part of one, likewise, and the kernel that adds parts: its launch, and the bytes of a cycle,
  // of one of its blocks and of all.
  static constexpr double kPartCycles = 8000;
  static constexpr double kFinishCycles = 5000;
  static constexpr double kFinishBytesOfBlock = 40, kFinishBytesPerCycle = 2500;
};

// A product of float16 pairs errs by up to 2^-21 of itself, repairs leave as much (pair.cuh), and
// wgmma truncates: fewer terms than these do not hide that behind k eps.
constexpr int64_t kLeastDepth = 32;

// It holds both operands again.
constexpr int64_t kMaxScratchBytes = int64_t{8} << 30;
constexpr int64_t kMaxScratchBytesUnasked = int64_t{4} << 30;
// A batch is made in at most so many groups: each is five launches or more.
constexpr int64_t kMaxGroups = 32;

// Tiles of C have numbers of 32 bits, in lists of elements too.
constexpr int64_t kMaxTiles = int64_t{1} << 24;

// A part of k has at least so many steps, and a product has no more parts than it gains by: with as
// few as these it takes at most so many times what it takes with the best number. In a batch every
// further part costs.
constexpr int64_t kLeastSteps = 4;
constexpr double kNearlyBest = 1.1;

int64_t TilesOfMember(const SgemmProblem& problem) {
  return CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines);
}

}  // namespace

bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k) {
  if (!limits.has_wgmma || problem.m == 0 || problem.n == 0) return false;
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
  double least = cycles_of(1);
  for (int64_t split = 2; split <= most; ++split) least = std::min(least, cycles_of(split));
  for (int64_t split = 1; split < most; ++split) {
    if (cycles_of(split) > kNearlyBest * least) continue;
    return CeilDiv(steps, CeilDiv(steps, split));  // of which none is empty
  }
  return std::max<int64_t>(most, 1);
}

SgemmProblem GroupOfTensor(const SgemmProblem& problem, int64_t split_k) {
  const int64_t size = problem.batch_dims > 0 ? problem.batch[0].size : 1;
  SgemmProblem group = problem;
  for (int64_t groups = 1; groups <= std::min(size, kMaxGroups); ++groups) {
    if (size % groups != 0) continue;
    group.batch[0].size = size / groups;
    if (ScratchOf(group, split_k).bytes <= kMaxScratchBytesUnasked) return group;
  }
  return problem;
}

double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members,
                      int64_t split_k) {
  const int64_t tiles = TilesOfMember(problem) * members;
  const int64_t waves = CeilDiv(tiles * split_k, limits.sm_count);
  const auto steps = static_cast<double>(CeilDiv(CeilDiv(problem.k, kTensorStepK), split_k));
  const auto bytes_of = [&](bool along_k) {
    const bool once = along_k && problem.k <= kMostDepthByLines;
    return once ? TensorCost::kBytesReadOnce : TensorCost::kBytesReadTwice;
  };
  const double bytes_of_k =
      problem.m * bytes_of(!problem.trans_a) + problem.n * bytes_of(problem.trans_b);
  const double step = IsCompensated(problem, limits, split_k) ? TensorCost::kCompensatedStepCycles
                                                              : TensorCost::kStepCycles;
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
  return KPerSplit(problem.k, split_k) > kMaxDepthPlain &&
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
