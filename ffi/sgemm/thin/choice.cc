#include "sgemm/thin/choice.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace jaxkernels {
namespace {

// Not measured yet; by arithmetic of an H200's data sheet, at 1.75 GHz.
struct ThinCost {
  // From the start of the kernel to its end where there is nothing to do, and of a second one.
  static constexpr double kLaunchCycles = 4000;
  static constexpr double kReduceCycles = 4000;
  // Of operands and results, 4.0 TB/s.
  static constexpr double kBytesPerCycle = 2300;
  // FFMA of an SM in a cycle that kShallow reaches.
  static constexpr double kShallowFfmaPerCycle = 75;
  // Bytes that an SM can ask for, so that few blocks are slower.
  static constexpr double kBytesPerCycleOfSm = 40;
};

// So many blocks for each two SMs keep the memory busy.
constexpr int64_t kBlocksForTwoSms = 3;

// k of a block, at least: a few steps of every thread.
constexpr int64_t kLeastDepthAlong = 512;
constexpr int64_t kLeastStepsAcross = 8;
// Lines that lie across k: those of a block, at most and at least.
constexpr int kMostLanesAcross = 32, kLeastLanesAcross = 8;
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
  const int64_t splits = split_k > 0 ? split_k : CeilDiv(parts, cluster);
  const int64_t share = CeilDiv(problem.k, cluster * splits);
  choice->k_per_block = CeilDiv(share, kDepthGranularity) * kDepthGranularity;
  choice->split_k = split_k > 0 ? split_k : CeilDiv(problem.k, choice->k_per_block * cluster);
}

ThinChoice ChooseFewLines(const SgemmProblem& problem, const DeviceLimits& limits, int split_k) {
  ThinChoice choice;
  choice.many_is_a = problem.m >= problem.n;
  const int64_t many = choice.many_is_a ? problem.m : problem.n;
  choice.few = ThinFewOf(choice.many_is_a ? problem.n : problem.m);
  const bool along_k = choice.many_is_a ? !problem.trans_a : problem.trans_b;
  if (along_k) {
    choice.form = ThinForm::kAlongK;
    const int64_t groups = CeilDiv(many, AlongTurns(choice.few) * kAlongLinesOfTurn);
    ShareDepth(problem, limits, groups, kLeastDepthAlong, kMostDepthOfThread * kAlongStepK / 4,
               split_k, &choice);
    return choice;
  }
  choice.form = ThinForm::kAcrossK;
  const auto blocks_of = [&](int lanes) {  // without a second kernel
    const int64_t least = kLeastStepsAcross * kThinThreads / lanes;
    return CeilDiv(many, kAcrossLines * lanes) *
           std::clamp<int64_t>(problem.k / least, 1, limits.cluster_blocks);
  };
  choice.lanes = kMostLanesAcross;
  while (choice.lanes > kLeastLanesAcross &&
         2 * blocks_of(choice.lanes) < kBlocksForTwoSms * limits.sm_count) {
    choice.lanes /= 2;
  }
  const int64_t groups_of_k = kThinThreads / choice.lanes;
  ShareDepth(problem, limits, CeilDiv(many, kAcrossLines * choice.lanes),
             kLeastStepsAcross * groups_of_k, kMostDepthOfThread * groups_of_k, split_k, &choice);
  return choice;
}

}  // namespace

ThinChoice ChooseThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k) {
  if (problem.k <= kMostDepthShallow) return ChooseShallow(problem, limits);
  if (std::min(problem.m, problem.n) <= kThinMostFew) {
    return ChooseFewLines(problem, limits, split_k);
  }
  return {};
}

double CyclesOfThin(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members) {
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
    const double computing =
        CeilDiv(blocks, limits.sm_count) * of_block / ThinCost::kShallowFfmaPerCycle;
    return cycles + std::max(bytes / ThinCost::kBytesPerCycle, computing);
  }
  const int64_t lines = choice.form == ThinForm::kAlongK
                            ? AlongTurns(choice.few) * kAlongLinesOfTurn
                            : kAcrossLines * choice.lanes;
  const int64_t groups = CeilDiv(std::max(problem.m, problem.n), lines);
  const int64_t blocks = groups * choice.cluster_blocks * choice.split_k * members;
  const double busy = static_cast<double>(std::min<int64_t>(blocks, limits.sm_count));
  if (choice.split_k > 1) cycles += ThinCost::kReduceCycles;
  return cycles + bytes / std::min(ThinCost::kBytesPerCycle, busy * ThinCost::kBytesPerCycleOfSm);
}

}  // namespace jaxkernels
