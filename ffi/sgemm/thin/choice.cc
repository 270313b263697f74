#include "sgemm/thin/choice.h"

#include <algorithm>
#include <utility>

#include "core/ceil_div.h"
#include "sgemm/tile_choice.h"

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
  static constexpr double kBytesPerCycleAlongOfFour = 1700, kBytesPerCycleAcrossOfFour = 2200;
  // Bytes a cycle that one SM can request; few blocks are therefore slower.
  static constexpr double kBytesPerCycleOfSm = 40;
  // kShallow, fitted to 251 times of 41 products (H200, 2026-11): the start, and each wave of the
  // blocks that an SM holds at once.
  static constexpr double kShallowLaunchCycles = 4510, kTurnCycles = 456;
  // Warps that keep an SM busy.
  static constexpr double kWarpsOfBusySm = 4;
  // 128 copies of a pack or a float; the start and end of a warp.
  static constexpr double kCopyCycles = 23.4, kWarpCycles = 14.6;
  static constexpr double kShallowBytesPerCycle = 3340;
  // Bytes of C a cycle in the extra time of stores, if no tile has whole rows of C and tiles are
  // less than 512 bytes wide.
  static constexpr double kNarrowBytesPerCycle = 10750;
};

// Blocks for each two SMs that keep the memory busy.
constexpr int64_t kBlocksForTwoSms = 3;

// Minimum k of a block: a few steps of every thread.
constexpr int64_t kLeastDepthAlong = 512;
constexpr int64_t kLeastStepsAcross = 16;
// Bytes of lines that a block should have, so that its start and end do not count.
constexpr int64_t kBytesOfBlock = 64 * 1024;
// Threads side by side on lines of an MN-major operand.
constexpr int kUsualLanesAcross = 32, kLeastLanesAcross = 8;
// Longest sum of a thread, for the sake of accuracy.
constexpr int64_t kMostDepthOfThread = 1024;
// Shares of k start at 16-byte boundaries.
constexpr int64_t kDepthGranularity = 128;

double BytesOf(const SgemmProblem& problem) {
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
  const auto k = static_cast<double>(problem.k);
  return 4 * (m * k + n * k + m * n);
}

// CyclesOfShallow estimates the time of `members` batch members. `problem` is the result of
// WithManyRows.
double CyclesOfShallow(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members,
                       const ShallowTile& tile, int threads) {
  const int64_t rows = threads / 32 * tile.RowsOfWarp(), columns = tile.Columns();
  const int64_t blocks = CeilDiv(problem.m, rows) * CeilDiv(problem.n, columns) * members;
  const int64_t blocks_of_sm = std::max<int64_t>(CeilDiv(blocks, limits.sm_count), 1);
  const int64_t at_once = std::max(ShallowBlocksPerSm(problem, limits, tile, threads), 1);
  const double warps = std::min(at_once, blocks_of_sm) * threads / 32.0;
  const double busy = std::min(1.0, warps / ThinCost::kWarpsOfBusySm);
  const double efficiency = problem.trans_a ? tile.efficiency_across : tile.efficiency;
  // Threads go through whole stages of a K-major A. Without this term (53608, 96, 34) gets tiles of
  // 32 columns: 25.3 us instead of 24.0 (H100, 2026-11).
  const int64_t granularity_a = problem.trans_a ? kFloatsOfPack : ShallowStageDepth(true);
  const auto k = static_cast<double>(problem.k);
  const auto k_of_a = static_cast<double>(CeilDiv(problem.k, granularity_a) * granularity_a);
  const double ffma = rows * columns * 4.0 * CeilDiv(problem.k, 4) / 128;
  const double copies_a = k_of_a / 128 * rows / (problem.HasAlignedRowsA() ? 4.0 : 1.0);
  const double copies_b =
      k / 128 * columns / (problem.HasAlignedRowsB() && !problem.trans_b ? 4.0 : 1.0);
  const double of_block =
      (ffma / efficiency + (copies_a + copies_b) * ThinCost::kCopyCycles) / busy +
      threads / 32 * ThinCost::kWarpCycles;
  const bool is_narrow = columns < 128 && columns < problem.n;
  const double narrow =
      is_narrow ? 4.0 * problem.m * problem.n * members * (problem.n % kFloatsOfPack == 0 ? 1 : 2)
                : 0;
  return ThinCost::kShallowLaunchCycles +
         ThinCost::kTurnCycles * static_cast<double>(CeilDiv(blocks_of_sm, at_once)) +
         static_cast<double>(blocks_of_sm) * of_block +
         BytesOf(problem) * static_cast<double>(members) / ThinCost::kShallowBytesPerCycle +
         narrow / ThinCost::kNarrowBytesPerCycle;
}

// ChooseShallow considers the whole batch, because the tile does not change the sums.
ThinChoice ChooseShallow(const SgemmProblem& problem, const DeviceLimits& limits) {
  const SgemmProblem made = WithManyRows(problem);
  ThinChoice choice;
  choice.form = ThinForm::kShallow;
  choice.many_is_a = made.m == problem.m;
  choice.k_per_block = problem.k;
  double least = -1;
  for (int tile = 0; tile < kShallowTileCount; ++tile) {
    // Several narrow tiles side by side would each read A.
    const bool is_for_few = kShallowTiles[tile].Columns() < kShallowColumns;
    if (is_for_few && kShallowTiles[tile].Columns() < made.n) continue;
    for (int threads = kShallowTiles[tile].least_threads; threads <= kShallowMostThreads;
         threads *= 2) {
      const double cycles =
          CyclesOfShallow(made, limits, problem.Batch(), kShallowTiles[tile], threads);
      if (least >= 0 && cycles >= least) continue;
      least = cycles;
      choice.tile = tile;
      choice.threads = threads;
    }
  }
  return choice;
}

// ShareDepth chooses how many blocks share a line's k: enough to keep the memory busy, each with
// `least` k or more.
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

// ChooseTurns considers the whole batch, because the lines of a block do not change the sums.
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

// ChooseLanes returns the lanes that fill rows of 512 bytes, or twice that. It returns fewer if
// lines are few, or if there would be too few blocks.
int ChooseLanes(const SgemmProblem& problem, const DeviceLimits& limits, int64_t many) {
  const auto blocks_of = [&](int lanes) {  // without a second kernel
    const int64_t least = kLeastStepsAcross * kThinThreads / lanes;
    return CeilDiv(many, kAcrossLines * lanes) *
           std::clamp<int64_t>(problem.k / least, 1, limits.cluster_blocks);
  };
  const auto are_few = [&](int lanes) {
    return 2 * blocks_of(lanes) < kBlocksForTwoSms * limits.sm_count;
  };
  // Twice the lanes are used only if no cluster has to share k for it: (1, 4096, 4096) by 16 blocks
  // takes 21.8 us, by 8 with half the lanes, in an earlier form, 19.8.
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

// kShallow serves products of small k. The limit is higher if one side has few lines.
constexpr int64_t kMostDepthShallow = 64, kMostDepthOfFewLines = 128;
constexpr int64_t kFewLinesShallow = 16;
// IsOfFewLines: a side of very few lines has forms of its own, which gain nothing up to this k. us,
// kShallow and those forms (H200, 2026-11):
// (65536, 2, 64) 7.1 14.9, (262144, 1, 32) 12.0 30.3, TN 11.7 11.6
// 4096 x (4, 64, 64) 26.4 47.1, (4, 65536, 64) 8.5 9.7
bool IsOfFewLines(const SgemmProblem& problem) {
  return std::min(problem.m, problem.n) <= kThinMostFew && problem.k > kMostDepthShallow;
}

}  // namespace

SgemmProblem WithManyRows(SgemmProblem problem) {
  if (problem.m != 1 || problem.n == 1) return problem;
  std::swap(problem.m, problem.n);
  std::swap(problem.trans_a, problem.trans_b);
  std::swap(problem.aligned_a, problem.aligned_b);
  std::swap(problem.pad_a, problem.pad_b);
  problem.trans_a = !problem.trans_a;
  problem.trans_b = !problem.trans_b;
  return problem;
}

int ShallowSmemBytes(const SgemmProblem& problem, const ShallowTile& tile, int threads) {
  return ShallowSmemBytes(tile, threads, problem.k, !problem.trans_a);
}

int ShallowBlocksPerSm(const SgemmProblem& problem, const DeviceLimits& limits,
                       const ShallowTile& tile, int threads) {
  const int by_registers = tile.blocks_per_sm * kShallowMostThreads / threads;
  return std::min(by_registers,
                  limits.BlocksPerSm(threads, ShallowSmemBytes(problem, tile, threads)));
}

bool IsThin(const SgemmProblem& problem) {
  const bool few_lines = std::min(problem.m, problem.n) <= kFewLinesShallow;
  return problem.k <= (few_lines ? kMostDepthOfFewLines : kMostDepthShallow) ||
         IsOfFewLines(problem);
}

bool SumsInOrder(const SgemmProblem& problem) { return problem.k <= kMostDepthShallow; }

ThinChoice ChooseThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k) {
  if (!IsThin(problem)) return {};
  return IsOfFewLines(problem) ? ChooseFewLines(problem, limits, split_k)
                               : ChooseShallow(problem, limits);
}

double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t members) {
  if (members == 1) problem.batch_dims = 0;  // the lines of a block may depend on the batch
  const ThinChoice choice = ChooseThin(problem, limits, 0);
  if (choice.form == ThinForm::kShallow) {
    return CyclesOfShallow(WithManyRows(problem), limits, members, kShallowTiles[choice.tile],
                           choice.threads);
  }
  const double bytes = BytesOf(problem) * static_cast<double>(members);
  double cycles = ThinCost::kLaunchCycles;
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
