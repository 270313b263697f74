#include "sgemm/thin/small_k_plan.h"

#include <algorithm>
#include <utility>

#include "core/ceil_div.h"
#include "sgemm/tiles.h"

namespace jaxkernels {
namespace {

struct Cost {
  // Fitted to 251 times of 41 products (H200, 2026-11): the start, and each wave of the blocks that
  // an SM holds at once.
  static constexpr double kLaunchCycles = 4510, kWaveCycles = 456;
  static constexpr double kWarpsOfBusySm = 4;  // fewer use a share of the SM's rates
  // 128 copies of a pack or a float; the start and end of a warp.
  static constexpr double kCopyCycles = 23.4, kWarpCycles = 14.6;
  static constexpr double kBytesPerCycle = 3340;
  // Bytes of C a cycle in the extra time of stores, if no tile has whole rows of C and tiles are
  // less than 512 bytes wide.
  static constexpr double kNarrowBytesPerCycle = 10750;
};

// TransposedIfOneRow returns the product that kSmallK computes: that of the transposes, in the same
// memory, if C is one row.
SgemmProblem TransposedIfOneRow(SgemmProblem problem) {
  if (problem.m != 1 || problem.n == 1) return problem;
  std::swap(problem.m, problem.n);
  std::swap(problem.trans_a, problem.trans_b);
  std::swap(problem.aligned_a, problem.aligned_b);
  std::swap(problem.pad_a, problem.pad_b);
  problem.trans_a = !problem.trans_a;
  problem.trans_b = !problem.trans_b;
  return problem;
}

// SmallKBlocksPerSm returns the blocks that an SM holds at once. `problem`, here and in CyclesOf,
// is the result of TransposedIfOneRow.
int SmallKBlocksPerSm(const SgemmProblem& problem, const DeviceLimits& limits,
                      const SmallKTile& tile, int threads) {
  const int smem_bytes = SmallKSmemBytes(tile, threads, problem.k, !problem.trans_a);
  return std::min(tile.blocks_per_sm * kSmallKMaxThreads / threads,
                  limits.BlocksPerSm(threads, smem_bytes));
}

double CyclesOf(const SgemmProblem& problem, const DeviceLimits& limits, int64_t batch_count,
                const SmallKTile& tile, int threads) {
  const int64_t rows = threads / 32 * tile.RowsOfWarp(), columns = tile.Columns();
  const int64_t blocks = CeilDiv(problem.m, rows) * CeilDiv(problem.n, columns) * batch_count;
  const int64_t blocks_of_sm = std::max<int64_t>(CeilDiv(blocks, limits.sm_count), 1);
  const int64_t at_once = std::max(SmallKBlocksPerSm(problem, limits, tile, threads), 1);
  const double warps = std::min(at_once, blocks_of_sm) * threads / 32.0;
  const double busy = std::min(1.0, warps / Cost::kWarpsOfBusySm);
  const double efficiency = problem.trans_a ? tile.efficiency_mn_major : tile.efficiency;
  // Threads go through whole stages of a K-major A. Without this term (53608, 96, 34) gets tiles of
  // 32 columns: 25.3 us instead of 24.0 (H100, 2026-11).
  const int64_t granularity_a = problem.trans_a ? kFloatsOfPack : SmallKStageDepth(true);
  const auto k = static_cast<double>(problem.k);
  const auto k_of_a = static_cast<double>(CeilDiv(problem.k, granularity_a) * granularity_a);
  const double ffma = rows * columns * 4.0 * CeilDiv(problem.k, 4) / 128;
  const double copies_a = k_of_a / 128 * rows / (problem.HasAlignedRowsA() ? 4.0 : 1.0);
  const double copies_b =
      k / 128 * columns / (problem.HasAlignedRowsB() && !problem.trans_b ? 4.0 : 1.0);
  const int warps_of_block = threads / 32;
  const double of_block = (ffma / efficiency + (copies_a + copies_b) * Cost::kCopyCycles) / busy +
                          warps_of_block * Cost::kWarpCycles;
  const bool is_narrow = columns < 128 && columns < problem.n;
  const double narrow = is_narrow ? 4.0 * problem.m * problem.n * batch_count *
                                        (problem.n % kFloatsOfPack == 0 ? 1 : 2)
                                  : 0;
  return Cost::kLaunchCycles +
         Cost::kWaveCycles * static_cast<double>(CeilDiv(blocks_of_sm, at_once)) +
         static_cast<double>(blocks_of_sm) * of_block +
         ThinBytesOf(problem) * static_cast<double>(batch_count) /
             (Cost::kBytesPerCycle * limits.MemoryRate()) +
         narrow / Cost::kNarrowBytesPerCycle;
}

// StoresWholeLines tells whether pack stores write whole 128-byte lines at a time, or with the
// widest tile a whole row. (A thread stores its first four columns before the others.) Otherwise it
// is faster to exchange sums and to store floats.
// H100, tiles of 8, 8, 8 unless named, in packs and exchanged, us (2026-11):
// (53607, 140, 34) 47.1 38.7
// (53608, 60, 8) 26.5 9.1
// (53608, 300, 16) 89.0 38.1
// (65536, 64, 64), with other copies 21.5 22.0
// (4096, 4100, 8) by 16, 4, 8 41.0 29.4, (53608, 192, 16) 24.7 28.7
// (65536, 32, 64) by 4, 4, 8 18.3 14.1
bool StoresWholeLines(const SmallKTile& tile, int64_t n) {
  if (tile.columns == kFloatsOfPack) return true;
  return tile.lanes >= 8 && (n % 32 == 0 || (tile.lanes == 16 && n <= tile.Columns()));
}

}  // namespace

double CyclesOfSmallK(const SgemmProblem& problem, const DeviceLimits& limits, int64_t batch_count,
                      const SgemmPlan& plan) {
  return CyclesOf(TransposedIfOneRow(problem), limits, batch_count, kSmallKTiles[plan.tile],
                  plan.block_threads);
}

// PlanSmallK chooses the tile for the whole batch, because it does not change the sums.
// PlanSmallK and PlanShortSide set the block's and the thread's m and n as if the long side were A;
// PlanThin swaps them if it is B.
void PlanSmallK(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  const SgemmProblem computed = TransposedIfOneRow(problem);
  plan.thin = ThinForm::kSmallK;
  plan.long_is_a = computed.m == problem.m;
  plan.k_per_split = problem.k;
  double least = -1;
  for (int index = 0; index < kSmallKTileCount; ++index) {
    // Several narrow tiles side by side would each read A.
    const SmallKTile& tile = kSmallKTiles[index];
    if (tile.Columns() < kSmallKColumns && tile.Columns() < computed.n) continue;
    for (int threads = tile.least_threads; threads <= kSmallKMaxThreads; threads *= 2) {
      const double cycles = CyclesOf(computed, limits, problem.batch.Count(), tile, threads);
      if (least >= 0 && cycles >= least) continue;
      least = cycles;
      plan.tile = index;
      plan.block_threads = threads;
    }
  }
  const SmallKTile& tile = kSmallKTiles[plan.tile];
  const int threads = plan.block_threads;
  plan.block_m = threads / 32 * tile.RowsOfWarp();
  plan.block_n = tile.Columns();
  plan.block_k = SmallKStageDepth(!computed.trans_a);
  plan.thread_m = tile.rows;
  plan.thread_n = tile.columns;
  plan.smem_bytes = SmallKSmemBytes(tile, threads, problem.k, !computed.trans_a);
  plan.stages = plan.smem_bytes / SmallKSmemBytes(tile, threads, 1, !computed.trans_a);
  plan.blocks_per_sm = SmallKBlocksPerSm(computed, limits, tile, threads);
  plan.pack_a = problem.HasAlignedRowsA() ? kFloatsOfPack : 1;
  plan.pack_b = problem.HasAlignedRowsB() ? kFloatsOfPack : 1;
  const bool stores_packs =
      plan.long_is_a && problem.HasAlignedRowsC() && StoresWholeLines(tile, problem.n);
  plan.pack_c = stores_packs ? kFloatsOfPack : 1;
}

}  // namespace jaxkernels
