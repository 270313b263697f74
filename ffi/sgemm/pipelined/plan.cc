// Chooses the tile, the engine and the split of k of the rung `pipelined` by a cost model.
#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/rung_plans.h"

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

struct TileChoice {
  int tile = 0;  // index into kPipelinedTiles; 0 if k is 0
  int64_t split_k = 1;
};

// EngineOf returns how a tile gets its operands. kTma needs compute capability 9.0, operands that a
// tensor map can describe, and room for two blocks per SM, so that one computes while the other
// waits.
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

// CyclesOf estimates the time of a choice for `batch_count` batch members, in cycles of an SM.
// The estimate only ranks choices.
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

// ChooseOrder finds the cheapest tile and split of k for one batch member, or for the whole batch
// if the problem sets for_batch. It keeps a nonzero split_k.
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

// ChooseTile finds the cheapest tile for the whole batch among those that sum in the order of
// `one`.
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

// Slowdown of FFMA if TMA cannot read the rows; `tensor` reads any alignment. It equals the saving
// of padding (PaddingCost, measured).
constexpr double kFfmaOfFloats = 1.15;

// The model of `pipelined` is fitted to large products. Thin products also need the time of the
// memory traffic, half of it hidden by the arithmetic. Their stages have more k than the product.
// H200, us (2026-11):
// (4096, 4096, k): k = 1 to 32 35 to 43, 48 60.6, 64 60.6
// (4095, 4093, k), which TMA cannot read: k = 8 98.9, 32 100.9
// small products, modelled as 2.7: (1024, 64, 64) 4.4, (8192, 32, 32) 4.0, (512, 512, 32) 3.7
//
// Above kMaxDepthOfFewStages, kFfmaOfFloats applies: copies overlap with arithmetic. The limit is a
// guess; k of 33 to 81 was not measured. H200, us (2026-11), measured (3 of them are the launch),
// then modelled with 2.2 and with 1.15:
// 23 x (424, 2, 641) TN 28.2, 66, 36
// 13 x (78, 2, 15309) NT 55.9, 107, 57
// 53 x (13, 3025, 82) 53.1, 108, 61
constexpr double kThinLaunchCycles = 2500;
constexpr double kThinOfFloats = 2.2;
constexpr int64_t kMaxDepthOfFewStages = 64;
constexpr double kMemoryBytesPerCycle = 2 * 2300;
constexpr int64_t kDepthOfStage = 32;
// Rows of C that do not start at 128-byte boundaries add time to the stores. With more k the
// arithmetic hides it. H200, us, measured and without this term (2026-11):
// (8192, 1000, 32) 26.8 20.8, by `thin` 22.5
// (4096, 4100, 8) 55.7 40.1
// (53608, 300, 16) 56.7 47.7
// (53608, 132, 64) 54.5 54.5
constexpr int64_t kFloatsStoredAtOnce = 32;
constexpr double kBytesPerCycleWithin = 3700;

// PaddingCost is the cost of padding: a copy of an operand with rows at 16-byte boundaries.
struct PaddingCost {
  // Fraction of a product's time that TMA saves. Without and with padding, copies included:
  // H200 (4097, 4095, 4093), us (2026-11): 3159, 2797
  // H200 (8192, 50257, 768), us (2026-11): 14980, 12834
  // H200 2047^3, us (2026-11): 420, 384
  static constexpr double kSaved = 0.15;
  // Launch of the copy, and bytes that the memory moves in a cycle.
  static constexpr double kLaunchCycles = 5000;
  static constexpr double kBytesPerCycle = 2000;
  // Memory that padding may take without a request of the caller.
  static constexpr double kMaxBytes = 2.0 * (1 << 30);
};

}  // namespace

int64_t KPerSplit(int64_t k, int64_t split_k) {
  return CeilDiv(CeilDiv(k, split_k), kSplitGranularity) * kSplitGranularity;
}

double CyclesOfPipelined(const SgemmProblem& problem, const DeviceLimits& limits,
                         int64_t batch_count) {
  const TileChoice choice = ChooseOrder(problem, limits, 0);
  const Engine engine = EngineOf(problem, limits, kPipelinedTiles[choice.tile]);
  const double slower = engine == Engine::kTma ? 1 : kFfmaOfFloats;
  return CyclesOf(problem, limits, choice, batch_count) * slower;
}

double CyclesOfPipelinedIfThin(const SgemmProblem& problem, const DeviceLimits& limits,
                               int64_t batch_count) {
  const double results = 1.0 * problem.m * problem.n;
  const double elements = 1.0 * problem.m * problem.k + 1.0 * problem.n * problem.k + results;
  TileChoice choice = ChooseOrder(problem, limits, 0);
  if (batch_count > 1) choice.tile = ChooseTile(problem, limits, choice);
  const bool of_floats = EngineOf(problem, limits, kPipelinedTiles[choice.tile]) != Engine::kTma;
  SgemmProblem summed = problem;
  summed.k = std::max(problem.k, kDepthOfStage);
  const bool stores_parts = problem.n % kFloatsStoredAtOnce != 0 && problem.k <= kDepthOfStage;
  const double storing = stores_parts ? 4 * results * batch_count / kBytesPerCycleWithin : 0;
  const double slower = problem.k <= kMaxDepthOfFewStages ? kThinOfFloats : kFfmaOfFloats;
  return kThinLaunchCycles +
         CyclesOf(summed, limits, choice, batch_count) * (of_floats ? slower : 1) +
         4 * elements * batch_count / (kMemoryBytesPerCycle * limits.MemoryRate()) + storing;
}

void PlanPipelined(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                   SgemmPlan& plan) {
  const TileChoice one = ChooseOrder(problem, limits, split_k);
  PlanTile(problem, limits, one, ChooseTile(problem, limits, one), plan);
}

void PlanRepairs(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  static_assert(kPipelinedTiles[kRepairTile].block_m == kTensorLines &&
                kPipelinedTiles[kRepairTile].block_n == kTensorLines);
  PlanTile(problem, limits, {kRepairTile, 1}, kRepairTile, plan);
  plan.launches = static_cast<int>(LaunchesOfRepairs(problem, limits));
  plan.k_per_split = KPerSplit(problem.k, plan.launches);
}

SgemmProblem WithPadding(SgemmProblem problem, const DeviceLimits& limits, Algorithm algorithm) {
  if (RungOf(problem, limits, algorithm) != Algorithm::kPipelined) return problem;
  SgemmProblem padded = problem;
  padded.pad_a = static_cast<int>(-problem.PitchA() & (kFloatsOfPack - 1));
  padded.pad_b = static_cast<int>(-problem.PitchB() & (kFloatsOfPack - 1));
  const TileChoice one = ChooseOrder(padded, limits, 0);
  // Padding changes the engine, and with it the order in which slices sum. A batch member whose
  // tile has slices therefore gets the padding that it would get alone.
  const bool alone = kPipelinedTiles[one.tile].slices > 1 && !problem.for_batch;
  const int tile = alone ? one.tile : ChooseTile(padded, limits, one);
  if (EngineOf(padded, limits, kPipelinedTiles[tile]) != Engine::kTma) return problem;
  double cost = 0, bytes = 0;
  const auto add_copy = [&](int pad, int64_t elements, int64_t batch_count) {
    if (pad == 0) return;
    const double copied = 4.0 * elements * (alone ? 1 : batch_count);
    cost += PaddingCost::kLaunchCycles +
            2 * copied / (PaddingCost::kBytesPerCycle * limits.MemoryRate());
    bytes += copied;
  };
  add_copy(padded.pad_a, problem.m * problem.k, problem.batch.MatricesOf(&BatchDim::stride_a));
  add_copy(padded.pad_b, problem.k * problem.n, problem.batch.MatricesOf(&BatchDim::stride_b));
  const int64_t batch_count = alone ? 1 : problem.batch.Count();
  const double cycles = CyclesOf(problem, limits, {tile, one.split_k}, batch_count);
  const bool pays = cost < PaddingCost::kSaved * cycles && bytes <= PaddingCost::kMaxBytes;
  return pays ? padded : problem;
}

}  // namespace jaxkernels
