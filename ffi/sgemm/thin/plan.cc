// How the rung `thin` cuts a product, and its cost model. small_k_plan.cc has both for kSmallK.
#include <algorithm>
#include <utility>

#include "core/ceil_div.h"
#include "sgemm/rung_plans.h"
#include "sgemm/thin/small_k_plan.h"

namespace jaxkernels {
namespace {

// ThinCost is fitted to 247 products on an H200 (2026-11), at 1.75 GHz. Times below are us in CUDA
// graphs.
struct ThinCost {
  // A kernel with little to do, from its start to its end; then the extra time of clusters and of a
  // second kernel.
  static constexpr double kLaunchCycles = 3000, kClusterCycles = 1500, kReduceCycles = 4000;
  // Bytes of operands and results a cycle, with a short side of one line and of four. 16384 x 16384
  // by 1 line and by 4:
  // 1 line K-major 257, MN-major 246
  // 4 lines K-major 347, MN-major 254
  static constexpr double kBytesPerCycle = 2400;
  static constexpr double kBytesPerCycleKMajorOfFour = 1700, kBytesPerCycleMNMajorOfFour = 2200;
  // Estimates for eight lines: rates of 1366 to 2258 were measured, and each wave of blocks adds
  // kWaveCyclesOfEight. Four lines wait too, but their model has no such term:
  // 31 x (67, 2, 7489), four waves: measured 50.2, modelled 24.1 (H200, 2026-11)
  static constexpr double kBytesPerCycleOfEight = 1800, kWaveCyclesOfEight = 7000;
  // Bytes a cycle that one SM can request; few blocks are therefore slower.
  static constexpr double kBytesPerCycleOfSm = 40;
};

// Blocks per two SMs that keep the memory busy.
constexpr int64_t kBlocksForTwoSms = 3;

// Minimum k of a block: a few steps of every thread.
constexpr int64_t kMinDepthKMajor = 512;
constexpr int64_t kMinStepsMNMajor = 16;
// Bytes of lines that a block should have, so that its start and end do not count.
constexpr int64_t kBytesOfBlock = 64 * 1024;
// Threads side by side on lines of an MN-major operand.
constexpr int kUsualLanesMNMajor = 32, kMinLanesMNMajor = 8;
// Longest sum of a thread, for the sake of accuracy.
constexpr int64_t kMaxDepthOfThread = 1024;
// Shares of k start at 16-byte boundaries.
constexpr int64_t kDepthGranularity = 128;

// kSmallK serves products of small k. The limit is higher if one side has few lines.
constexpr int64_t kMaxDepthSmallK = 64, kMaxDepthOfFewLines = 128;
constexpr int64_t kFewLines = 16;

bool IsLongSideA(const SgemmProblem& problem) { return problem.m >= problem.n; }
bool IsLongSideKMajor(const SgemmProblem& problem) {
  return IsLongSideA(problem) ? !problem.trans_a : problem.trans_b;
}

// HasShortSide: a side of very few lines has forms of its own, which gain nothing up to
// kMaxDepthSmallK. us, kSmallK and those forms (H200, 2026-11):
// (65536, 2, 64) 7.1 14.9, (262144, 1, 32) 12.0 30.3, TN 11.7 11.6
// 4096 x (4, 64, 64) 26.4 47.1, (4, 65536, 64) 8.5 9.7
// Five to eight lines have one if k > kMaxDepthOfFewLines and the long side is MN-major. us,
// `pipelined` and this form (H200, 2026-11):
// (8, 14336, 4096) 119 69, (65536, 8, 256) TN 46.0 27.5, (16383, 5, 16383) TN 484 277
// slower, but still chosen: 5 x (237, 5, 22765) TT 68.0 90.4
// K-major, in a form that was compiled for it: (16384, 8, 16384) 331 415,
// 57 x (5, 2071, 2273) NT 713 851, 6 x (7935, 5, 7778) 736 612
bool HasShortSide(const SgemmProblem& problem) {
  const int64_t lines = std::min(problem.m, problem.n);
  if (lines <= kThinMaxShortLinesKMajor) return problem.k > kMaxDepthSmallK;
  return lines <= kThinMaxShortLines && problem.k > kMaxDepthOfFewLines &&
         !IsLongSideKMajor(problem);
}

// ShareDepth chooses how many blocks share a line's k: enough to keep the memory busy, if each has
// `least` k or more, and enough that none has more than `most`.
void ShareDepth(const SgemmProblem& problem, const DeviceLimits& limits, int64_t groups,
                int64_t least, int64_t most, int split_k, SgemmPlan& plan) {
  const int64_t batch_count = problem.BatchCountForOrder();
  const int64_t wanted =
      CeilDiv(kBlocksForTwoSms * limits.sm_count, 2 * std::max<int64_t>(groups * batch_count, 1));
  const int64_t parts =
      std::max(std::min(wanted, std::max<int64_t>(problem.k / least, 1)), CeilDiv(problem.k, most));
  int64_t cluster = 1;
  while (cluster < parts && 2 * cluster <= limits.cluster_blocks) cluster *= 2;
  const int64_t splits =
      split_k > 0 ? split_k : std::min<int64_t>(CeilDiv(parts, cluster), kMaxSplit);
  const int64_t share = CeilDiv(problem.k, cluster * splits);
  plan.cluster_blocks = static_cast<int>(cluster);
  plan.k_per_split = CeilDiv(share, kDepthGranularity) * kDepthGranularity * cluster;
  plan.split_k = split_k > 0 ? split_k : static_cast<int>(CeilDiv(problem.k, plan.k_per_split));
}

// ChooseIterations considers the whole batch, because the lines of a block do not change the sums.
int ChooseIterations(const SgemmProblem& problem, const DeviceLimits& limits, int64_t long_lines,
                     const SgemmPlan& plan) {
  const int64_t shares = plan.cluster_blocks * plan.split_k * problem.batch.Count();
  const int64_t k_per_block = plan.k_per_split / plan.cluster_blocks;
  int iterations = 1;
  while (iterations < kKMajorMaxIterations &&
         iterations * kKMajorIterationLines * k_per_block * 4 < kBytesOfBlock &&
         CeilDiv(long_lines, 2 * iterations * kKMajorIterationLines) * shares >=
             int64_t{3} * limits.sm_count) {
    iterations *= 2;
  }
  return iterations;
}

// ChooseLanes returns the lanes that fill rows of 512 bytes, or twice that. It returns fewer if
// lines are few, or if there would be too few blocks.
int ChooseLanes(const SgemmProblem& problem, const DeviceLimits& limits, int64_t long_lines) {
  const auto blocks_of = [&](int lanes) {  // without a second kernel
    const int64_t least = kMinStepsMNMajor * kThinThreads / lanes;
    return CeilDiv(long_lines, kMNMajorThreadLines * lanes) *
           std::clamp<int64_t>(problem.k / least, 1, limits.cluster_blocks);
  };
  const auto are_few = [&](int lanes) {
    return 2 * blocks_of(lanes) < kBlocksForTwoSms * limits.sm_count;
  };
  // Twice the lanes are used only if no cluster has to share k for it. (1, 4096, 4096) took 21.8 us
  // by clusters of 16 blocks, and in an earlier form 19.8 by clusters of 8 with half the lanes.
  if (2 * CeilDiv(long_lines, kMNMajorThreadLines * kMNMajorMaxLanes) >=
      kBlocksForTwoSms * limits.sm_count) {
    return kMNMajorMaxLanes;
  }
  int lanes = kUsualLanesMNMajor;
  while (lanes > kMinLanesMNMajor && kMNMajorThreadLines * lanes / 2 >= long_lines) lanes /= 2;
  while (lanes > kMinLanesMNMajor && are_few(lanes) && blocks_of(lanes / 2) > blocks_of(lanes) &&
         problem.k >= kMinStepsMNMajor * 2 * kThinThreads / lanes) {
    lanes /= 2;
  }
  return lanes;
}

// PlanShortSide plans kKMajor and kMNMajor, whose blocks may share k.
void PlanShortSide(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                   SgemmPlan& plan) {
  plan.long_is_a = IsLongSideA(problem);
  const bool k_major = IsLongSideKMajor(problem);
  const int64_t long_lines = plan.long_is_a ? problem.m : problem.n;
  const int short_lines = ThinShortLinesOf(plan.long_is_a ? problem.n : problem.m);
  if (k_major) {
    plan.thin = ThinForm::kKMajor;
    ShareDepth(problem, limits, CeilDiv(long_lines, kKMajorIterationLines), kMinDepthKMajor,
               kMaxDepthOfThread * kKMajorSlices, split_k, plan);
    const int iterations = ChooseIterations(problem, limits, long_lines, plan);
    plan.slices = kKMajorSlices;
    plan.block_k = kKMajorStepK;
    plan.block_m = iterations * kKMajorIterationLines;
    plan.thread_m = iterations * kKMajorWarpLines;
  } else {
    plan.thin = ThinForm::kMNMajor;
    const int lanes = ChooseLanes(problem, limits, long_lines);
    plan.slices = plan.block_k = kThinThreads / lanes;
    plan.block_m = kMNMajorThreadLines * lanes;
    plan.thread_m = kMNMajorThreadLines;
    ShareDepth(problem, limits, CeilDiv(long_lines, plan.block_m), kMinStepsMNMajor * plan.slices,
               kMaxDepthOfThread * plan.slices, split_k, plan);
  }
  plan.block_n = plan.thread_n = short_lines;
  plan.block_threads = kThinThreads;
  plan.blocks_per_sm = std::min(ThinBlocksPerSm(short_lines), limits.BlocksPerSm(kThinThreads, 0));
  // A single short-side line is read in packs with a K-major long side, so both need alignment.
  // Several lines are loaded float by float.
  const bool has_packs = plan.long_is_a ? problem.HasAlignedRowsA() : problem.HasAlignedRowsB();
  const bool in_packs =
      has_packs && (!k_major || short_lines > 1 || (problem.aligned_a && problem.aligned_b));
  (plan.long_is_a ? plan.pack_a : plan.pack_b) = in_packs ? kFloatsOfPack : 1;
}

double BytesPerCycle(int short_lines, ThinForm form) {
  if (short_lines == 1) return ThinCost::kBytesPerCycle;
  if (short_lines == kThinMaxShortLines) return ThinCost::kBytesPerCycleOfEight;
  return form == ThinForm::kKMajor ? ThinCost::kBytesPerCycleKMajorOfFour
                                   : ThinCost::kBytesPerCycleMNMajorOfFour;
}

}  // namespace

bool IsThin(const SgemmProblem& problem) {
  const bool few_lines = std::min(problem.m, problem.n) <= kFewLines;
  return problem.k <= (few_lines ? kMaxDepthOfFewLines : kMaxDepthSmallK) || HasShortSide(problem);
}

bool SumsInOrder(const SgemmProblem& problem) { return problem.k <= kMaxDepthSmallK; }

double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t batch_count) {
  if (batch_count == 1) problem.batch.dims = 0;  // the lines of a block may depend on the batch
  SgemmPlan plan;
  PlanThin(problem, limits, 0, plan);
  if (plan.thin == ThinForm::kSmallK) {
    return CyclesOfSmallK(problem, limits, batch_count, plan);
  }
  const double bytes = ThinBytesOf(problem) * static_cast<double>(batch_count);
  double cycles = ThinCost::kLaunchCycles;
  const int64_t groups = CeilDiv(problem.m, plan.block_m) * CeilDiv(problem.n, plan.block_n);
  const int64_t blocks = groups * plan.cluster_blocks * plan.split_k * batch_count;
  const double busy = static_cast<double>(std::clamp<int64_t>(blocks, 1, limits.sm_count));
  const int short_lines = plan.long_is_a ? plan.block_n : plan.block_m;
  if (short_lines == 8) {
    const int64_t at_once = int64_t{limits.sm_count} * plan.blocks_per_sm;
    cycles += ThinCost::kWaveCyclesOfEight * static_cast<double>(CeilDiv(blocks, at_once));
  }
  if (plan.cluster_blocks > 1) cycles += ThinCost::kClusterCycles;
  if (plan.split_k > 1) {
    const double parts = 2.0 * plan.split_k * problem.m * problem.n * batch_count;
    cycles += ThinCost::kReduceCycles + 4 * parts / ThinCost::kBytesPerCycle;
  }
  const double most = BytesPerCycle(short_lines, plan.thin) * limits.MemoryRate();
  return cycles + bytes / std::min(most, busy * ThinCost::kBytesPerCycleOfSm);
}

void PlanThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
              SgemmPlan& plan) {
  if (HasShortSide(problem)) {
    PlanShortSide(problem, limits, split_k, plan);
  } else {
    PlanSmallK(problem, limits, plan);
  }
  if (!plan.long_is_a) {
    std::swap(plan.block_m, plan.block_n);
    std::swap(plan.thread_m, plan.thread_n);
  }
}

}  // namespace jaxkernels
