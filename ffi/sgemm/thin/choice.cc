#include "sgemm/thin/choice.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// Fitted to 247 products on an H200 (2026-11), at 1.75 GHz; us below, in CUDA graphs.
struct ThinCost {
  // From the start of the kernel to its end where there is little to do, and what clusters and a
  // second kernel add.
  static constexpr double kLaunchCycles = 3000, kClusterCycles = 1500, kReduceCycles = 4000;
  // Of operands and results; of four few lines. 16384 x 16384 by so many lines:
  // 1 line along k 257, across 246
  // 4 lines along k 347, across 254
  static constexpr double kBytesPerCycle = 2400;
  static constexpr double kBytesPerCycleAlongOfFour = 1700, kBytesPerCycleAcrossOfFour = 2200;
  // Bytes that an SM can ask for, so that few blocks are slower.
  static constexpr double kBytesPerCycleOfSm = 40;
  // kShallow: what a block takes besides its FFMA, and how many an SM makes in a cycle. Threads of
  // fewer rows read more of shared memory.
  // 8 rows, (4096, 4096, k): k = 1 20.5, 8 25.5, 16 32.3, 20 35.9, 48 64.8
  // 4 rows: 1000 x (64, 64, 64) 30.3, 4096 x (64, 64, 64) 130
  // 2 rows: (65536, 16, 64) 16.0 NN, 16.6 TN, 18.8 NT
  static constexpr double kBlockCycles = 100;
  static constexpr double ShallowFfmaPerCycle(int rows) {
    return rows > 4 ? 88 : rows > 2 ? 50 : 28;
  }
};

// So many blocks for each two SMs keep the memory busy.
constexpr int64_t kBlocksForTwoSms = 3;

// k of a block, at least: a few steps of every thread.
constexpr int64_t kLeastDepthAlong = 512;
constexpr int64_t kLeastStepsAcross = 16;
// Bytes of lines that a block should have, so that its beginning and end do not count.
constexpr int64_t kBytesOfBlock = 64 * 1024;
// Threads side by side on lines across k.
constexpr int kUsualLanesAcross = 32, kLeastLanesAcross = 8;
// The longest sum of a thread, for the sake of accuracy.
constexpr int64_t kMostDepthOfThread = 1024;
// Shares of k begin at multiples of 16 bytes.
constexpr int64_t kDepthGranularity = 128;

int64_t PowerOfTwoFrom(int64_t least) {
  int64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

ThinChoice ChooseShallow(const SgemmProblem& problem, const DeviceLimits& limits) {
  ThinChoice choice;
  choice.form = ThinForm::kShallow;
  choice.many_is_a = problem.n == 1 && problem.m > 1;
  const int64_t m = choice.many_is_a ? problem.n : problem.m;
  const int64_t n = choice.many_is_a ? problem.m : problem.n;
  choice.lanes =
      static_cast<int>(std::clamp<int64_t>(PowerOfTwoFrom(CeilDiv(n, kShallowColumns)), 4, 32));
  const int64_t rows_once = kThinThreads / choice.lanes;
  const int64_t columns = kShallowColumns * choice.lanes;
  // The fewest rows of a thread that hold all of C's, or that still give each SM two blocks. They
  // change no sum, so that the batch may be seen.
  choice.rows = 2;
  while (choice.rows < kShallowMostRows && rows_once * choice.rows < m &&
         CeilDiv(m, 2 * rows_once * choice.rows) * CeilDiv(n, columns) * problem.Batch() >=
             int64_t{2} * limits.sm_count) {
    choice.rows *= 2;
  }
  choice.k_per_block = problem.k;
  return choice;
}

// Blocks that share a line's k, each with `least` of it or more: as many as keep the memory busy.
void ShareDepth(const SgemmProblem& problem, const DeviceLimits& limits, int64_t groups,
                int64_t least, int64_t most, int split_k, ThinChoice* choice) {
  const int64_t members = problem.for_batch ? problem.Batch() : 1;
  const int64_t wanted =
      CeilDiv(kBlocksForTwoSms * limits.sm_count, 2 * std::max<int64_t>(groups * members, 1));
  const int64_t parts =
      std::max(std::min(wanted, std::max<int64_t>(problem.k / least, 1)), CeilDiv(problem.k, most));
  int64_t cluster = 1;
  while (cluster < parts && 2 * cluster <= limits.cluster_blocks) cluster *= 2;
  choice->cluster_blocks = static_cast<int>(cluster);
  const int64_t splits =
      split_k > 0 ? split_k : std::min<int64_t>(CeilDiv(parts, cluster), kMaxSplit);
  const int64_t share = CeilDiv(problem.k, cluster * splits);
  choice->k_per_block = CeilDiv(share, kDepthGranularity) * kDepthGranularity;
  choice->split_k = split_k > 0 ? split_k : CeilDiv(problem.k, choice->k_per_block * cluster);
}

// How many lines a block takes changes no sum, so that the batch may be seen.
int ChooseTurns(const SgemmProblem& problem, const DeviceLimits& limits, int64_t many,
                const ThinChoice& choice) {
  const int64_t shares = choice.cluster_blocks * choice.split_k * problem.Batch();
  int turns = 1;
  while (turns < kAlongMostTurns &&
         turns * kAlongLinesOfTurn * choice.k_per_block * 4 < kBytesOfBlock &&
         CeilDiv(many, 2 * turns * kAlongLinesOfTurn) * shares >= int64_t{3} * limits.sm_count) {
    turns *= 2;
  }
  return turns;
}

// As many as fill rows of 512 bytes, or twice as many; fewer where lines are few, or blocks would
// be.
int ChooseLanes(const SgemmProblem& problem, const DeviceLimits& limits, int64_t many) {
  const auto blocks_of = [&](int lanes) {  // without a second kernel
    const int64_t least = kLeastStepsAcross * kThinThreads / lanes;
    return CeilDiv(many, kAcrossLines * lanes) *
           std::clamp<int64_t>(problem.k / least, 1, limits.cluster_blocks);
  };
  const auto are_few = [&](int lanes) {
    return 2 * blocks_of(lanes) < kBlocksForTwoSms * limits.sm_count;
  };
  // Only where no cluster has to share k for it: (1, 4096, 4096) by 16 blocks takes 21.8 us, by 8
  // with half the lanes, in an earlier form, 19.8.
  if (2 * CeilDiv(many, kAcrossLines * kAcrossMostLanes) >= kBlocksForTwoSms * limits.sm_count) {
    return kAcrossMostLanes;
  }
  int lanes = kUsualLanesAcross;
  while (lanes > kLeastLanesAcross && kAcrossLines * lanes / 2 >= many) lanes /= 2;
  while (lanes > kLeastLanesAcross && are_few(lanes) && blocks_of(lanes / 2) > blocks_of(lanes) &&
         problem.k >= kLeastStepsAcross * 2 * kThinThreads / lanes) {
    lanes /= 2;
  }
  return lanes;
}

ThinChoice ChooseFewLines(const SgemmProblem& problem, const DeviceLimits& limits, int split_k) {
  ThinChoice choice;
  choice.many_is_a = problem.m >= problem.n;
  const int64_t many = choice.many_is_a ? problem.m : problem.n;
  choice.few = ThinFewOf(choice.many_is_a ? problem.n : problem.m);
  const bool along_k = choice.many_is_a ? !problem.trans_a : problem.trans_b;
  if (along_k) {
    choice.form = ThinForm::kAlongK;
    ShareDepth(problem, limits, CeilDiv(many, kAlongLinesOfTurn), kLeastDepthAlong,
               kMostDepthOfThread * kAlongSlices, split_k, &choice);
    choice.turns = ChooseTurns(problem, limits, many, choice);
    return choice;
  }
  choice.form = ThinForm::kAcrossK;
  choice.lanes = ChooseLanes(problem, limits, many);
  const int64_t groups_of_k = kThinThreads / choice.lanes;
  ShareDepth(problem, limits, CeilDiv(many, kAcrossLines * choice.lanes),
             kLeastStepsAcross * groups_of_k, kMostDepthOfThread * groups_of_k, split_k, &choice);
  return choice;
}

// Where kShallow serves: products of few k, somewhat more where one side has few lines.
constexpr int64_t kMostDepthShallow = 64, kMostDepthOfFewLines = 128;
constexpr int64_t kFewLinesShallow = 16;
// From so many k on very few lines have forms of their own.
constexpr int64_t kLeastDepthOfLines = 17;

bool IsOfFewLines(const SgemmProblem& problem) {
  return std::min(problem.m, problem.n) <= kThinMostFew && problem.k >= kLeastDepthOfLines;
}

}  // namespace

bool IsThin(const SgemmProblem& problem) {
  const bool few_lines = std::min(problem.m, problem.n) <= kFewLinesShallow;
  return problem.k <= (few_lines ? kMostDepthOfFewLines : kMostDepthShallow) ||
         IsOfFewLines(problem);
}

bool SumsInOrder(const SgemmProblem& problem) {
  return problem.k <= kMostDepthShallow && !IsOfFewLines(problem);
}

ThinChoice ChooseThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k) {
  if (!IsThin(problem)) return {};
  return IsOfFewLines(problem) ? ChooseFewLines(problem, limits, split_k)
                               : ChooseShallow(problem, limits);
}

double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t members) {
  if (members == 1) problem.batch_dims = 0;  // what a block takes may follow from the batch
  const ThinChoice choice = ChooseThin(problem, limits, 0);
  const double elements = static_cast<double>(problem.m) * problem.k +
                          static_cast<double>(problem.n) * problem.k +
                          static_cast<double>(problem.m) * problem.n;
  const double bytes = 4 * elements * members;
  double cycles = ThinCost::kLaunchCycles;
  if (choice.form == ThinForm::kShallow) {
    const int64_t lines_m = kThinThreads / choice.lanes * choice.rows;
    const int64_t lines_n = kShallowColumns * choice.lanes;
    const int64_t m = choice.many_is_a ? problem.n : problem.m;
    const int64_t n = choice.many_is_a ? problem.m : problem.n;
    const int64_t blocks = CeilDiv(m, lines_m) * CeilDiv(n, lines_n) * members;
    const double of_block = static_cast<double>(lines_m * lines_n) * problem.k;
    const double waves = std::max(1.0, static_cast<double>(blocks) / limits.sm_count);
    return cycles + bytes / ThinCost::kBytesPerCycle +
           waves * (ThinCost::kBlockCycles + of_block / ThinCost::ShallowFfmaPerCycle(choice.rows));
  }
  const bool along_k = choice.form == ThinForm::kAlongK;
  const int64_t lines = along_k ? choice.turns * kAlongLinesOfTurn : kAcrossLines * choice.lanes;
  const int64_t groups = CeilDiv(std::max(problem.m, problem.n), lines);
  const int64_t blocks = groups * choice.cluster_blocks * choice.split_k * members;
  const double busy = static_cast<double>(std::min<int64_t>(blocks, limits.sm_count));
  const double most = choice.few == 1 ? ThinCost::kBytesPerCycle
                      : along_k       ? ThinCost::kBytesPerCycleAlongOfFour
                                      : ThinCost::kBytesPerCycleAcrossOfFour;
  if (choice.cluster_blocks > 1) cycles += ThinCost::kClusterCycles;
  if (choice.split_k > 1) {
    const double parts = 2.0 * choice.split_k * problem.m * problem.n * members;
    cycles += ThinCost::kReduceCycles + 4 * parts / ThinCost::kBytesPerCycle;
  }
  return cycles + bytes / std::min(most, busy * ThinCost::kBytesPerCycleOfSm);
}

}  // namespace jaxkernels
