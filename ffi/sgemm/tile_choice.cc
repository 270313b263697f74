#include "sgemm/tile_choice.h"

#include <algorithm>

namespace jaxkernels {
namespace {

struct Cost {
  // From the start of a block to its first FFMA, plus from the last FFMA to its end.
  static constexpr double kBlockCycles = 3000;
  // Launch of a second kernel, and bytes of sums that the L2 moves in a cycle.
  static constexpr double kReduceCycles = 4000;
  static constexpr double kReduceBytesPerCycle = 1600;
};

// A split sums at least this many k. Shares are multiples of it, and thus of every block_k.
constexpr int64_t kSplitGranularity = 64;

constexpr bool SplitsAtStages() {
  for (const PipelinedTile& tile : kPipelinedTiles) {
    for (const Engine engine : {Engine::kTma, Engine::kFloats}) {
      if (kSplitGranularity % StagesOf(tile, engine, false, false).block_k != 0) return false;
    }
  }
  return true;
}
static_assert(SplitsAtStages(), "shares of k are whole stages of every tile");

// Slices do not repay their final sum up to this k. Large batches of such products are common, so
// they get the tile without slices. H200, 512 x (128, 128, 128) (2026-11): 62 us; with 64 x 64 in
// slices 78 us.
constexpr int64_t kMaxDepthUnsliced = 128;

// NextSplit returns the next larger split with a shorter share and no empty one. Splits in between
// give the same shares after rounding. Planning runs on every call: of 1024 splits of 65536 k, 64
// differ. Trying all 1024 took the host of an H200 35 us (2026-11).
int64_t NextSplit(int64_t k, int64_t split) {
  const int64_t longest = KPerSplit(k, split) / kSplitGranularity;
  return longest <= 1 ? kMaxSplit + 1 : CeilDiv(CeilDiv(k, kSplitGranularity), longest - 1);
}

// FitsTensorMap tells whether sizes fit the fields of a tensor map: 32 bits for a coordinate, 40
// for a stride in bytes.
bool FitsTensorMap(int64_t rows, int64_t pitch, int64_t batch_count) {
  constexpr int64_t kMaxSize = int64_t{1} << 31, kMaxStride = int64_t{1} << 38;
  return std::max({rows, pitch, batch_count}) < kMaxSize && rows * pitch < kMaxStride;
}

}  // namespace

TileChoice ChooseOrder(const SgemmProblem& problem, const DeviceLimits& limits, int split_k) {
  const int64_t batch_count = problem.BatchCountForOrder();
  TileChoice best;
  double least = -1;
  const int64_t most =
      split_k > 0 ? split_k : std::min(kMaxSplit, CeilDiv(problem.k, kSplitGranularity));
  for (int tile = 0; tile < kPipelinedTileCount; ++tile) {
    if (problem.k <= kMaxDepthUnsliced && kPipelinedTiles[tile].slices > 1) continue;
    for (int64_t split = split_k > 0 ? split_k : 1; split <= most;
         split = NextSplit(problem.k, split)) {
      const TileChoice choice{tile, split};
      const double cycles = CyclesOf(problem, limits, choice, batch_count);
      if (least < 0 || cycles < least) {
        least = cycles;
        best = choice;
      }
    }
  }
  return best;
}

int ChooseTile(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& one) {
  const PipelinedTile& alone = kPipelinedTiles[one.tile];
  const Engine engine = EngineOf(problem, limits, alone);
  const int64_t batch = problem.batch.Count();
  int best = one.tile;
  for (int tile = 0; tile < kPipelinedTileCount; ++tile) {
    const PipelinedTile& candidate = kPipelinedTiles[tile];
    if (candidate.slices != alone.slices) continue;
    // Slices divide the k of a stage, which differs between the engines.
    if (alone.slices > 1 && EngineOf(problem, limits, candidate) != engine) continue;
    if (CyclesOf(problem, limits, {tile, one.split_k}, batch) <
        CyclesOf(problem, limits, {best, one.split_k}, batch)) {
      best = tile;
    }
  }
  return best;
}

Engine EngineOf(const SgemmProblem& problem, const DeviceLimits& limits,
                const PipelinedTile& tile) {
  const bool a_k_major = !problem.trans_a, b_k_major = problem.trans_b;
  const bool aligned = problem.HasAlignedRowsA() && problem.HasAlignedRowsB();
  const bool mapped = FitsTensorMap(problem.trans_a ? problem.k : problem.m, problem.PitchA(),
                                    problem.batch.MatricesOf(&BatchDim::stride_a)) &&
                      FitsTensorMap(problem.trans_b ? problem.n : problem.k, problem.PitchB(),
                                    problem.batch.MatricesOf(&BatchDim::stride_b));
  const int smem_bytes = SmemBytesOf(tile, Engine::kTma, a_k_major, b_k_major);
  const bool fits = 2 * (smem_bytes + kReservedSmemPerBlock) <= limits.smem_per_sm;
  return aligned && mapped && fits && limits.compiled_for >= 90 ? Engine::kTma : Engine::kFloats;
}

double CyclesOf(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& choice,
                int64_t batch_count) {
  const PipelinedTile& tile = kPipelinedTiles[choice.tile];
  const int64_t blocks = CeilDiv(problem.m, tile.block_m) * CeilDiv(problem.n, tile.block_n) *
                         choice.split_k * batch_count;
  const double k = static_cast<double>(CeilDiv(problem.k, choice.split_k));
  const double ffma_cycles = tile.block_m * tile.block_n * k / 128;
  // A single block cannot hide its own latencies.
  const int64_t blocks_of_sm = CeilDiv(blocks, limits.sm_count);
  const double efficiency = tile.efficiency * (blocks_of_sm == 1 ? 0.75 : 1.0);
  double cycles = Cost::kBlockCycles * CeilDiv(blocks_of_sm, tile.blocks_per_sm) +
                  blocks_of_sm * ffma_cycles / efficiency;
  if (choice.split_k > 1) {
    const double bytes = 4.0 * problem.m * problem.n * (2 * choice.split_k + 1) * batch_count;
    cycles += Cost::kReduceCycles + bytes / Cost::kReduceBytesPerCycle;
  }
  return cycles;
}

int64_t KPerSplit(int64_t k, int64_t split_k) {
  return CeilDiv(CeilDiv(k, split_k), kSplitGranularity) * kSplitGranularity;
}

}  // namespace jaxkernels
