#include "sgemm/plan.h"

#include <algorithm>

namespace jaxkernels {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A block of the rungs below the pipelined one.
struct Rung {
  int block_m, block_n, block_k;
  int thread_m, thread_n;
  int block_threads;
};

Rung RungOf(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNaive:
      return {32, 32, 1, 1, 1, 1024};
    case Algorithm::kBlockTile:
      return {32, 32, 32, 1, 1, 1024};
    default:
      return {128, 128, 8, 8, 8, 256};
  }
}

// Elements of 16 bytes.
constexpr int kPack = 4;

// Whether stored rows begin at multiples of 16 bytes.
bool HasAlignedRowsA(const SgemmProblem& problem) {
  return problem.aligned_a && problem.PitchA() % kPack == 0;
}
bool HasAlignedRowsB(const SgemmProblem& problem) {
  return problem.aligned_b && problem.PitchB() % kPack == 0;
}

// Whether the numbers of a tensor map reach: 32 bits for a coordinate, 40 for a stride in bytes.
bool FitsTensorMap(int64_t rows, int64_t pitch, int64_t members) {
  constexpr int64_t kMaxSize = int64_t{1} << 31, kMaxStride = int64_t{1} << 38;
  return std::max({rows, pitch, members}) < kMaxSize && rows * pitch < kMaxStride;
}

// The tensor memory accelerator came with compute capability 9.0. Both operands have to lie as it
// can read them, and two blocks have to fit an SM, so that one computes while the other waits.
Engine EngineOf(const SgemmProblem& problem, const DeviceLimits& limits,
                const PipelinedTile& tile) {
  const bool a_along_k = !problem.trans_a, b_along_k = problem.trans_b;
  const bool aligned = HasAlignedRowsA(problem) && HasAlignedRowsB(problem);
  const bool mapped = FitsTensorMap(problem.trans_a ? problem.k : problem.m, problem.PitchA(),
                                    problem.MembersOf(&BatchDim::stride_a)) &&
                      FitsTensorMap(problem.trans_b ? problem.n : problem.k, problem.PitchB(),
                                    problem.MembersOf(&BatchDim::stride_b));
  const int smem_bytes = SmemBytesOf(tile, Engine::kTma, a_along_k, b_along_k);
  const bool fits = 2 * (smem_bytes + kReservedSmemPerBlock) <= limits.smem_per_sm;
  return aligned && mapped && fits && limits.compiled_for >= 90 ? Engine::kTma : Engine::kFloats;
}

// Blocks of a tile that are resident on one SM at once.
int BlocksPerSm(const PipelinedTile& tile, int smem_bytes, const DeviceLimits& limits) {
  const int by_smem = limits.smem_per_sm / (smem_bytes + kReservedSmemPerBlock);
  return std::min({by_smem, tile.blocks_per_sm, limits.threads_per_sm / tile.Threads()});
}

// What a choice of tile and split is expected to take, in cycles of an SM. It only has to rank
// choices.
struct Cost {
  // Fraction of the FFMA peak that a full SM reaches. H200 (2026-11), 4096^3; the last two by
  // squares of 256 to 512.
  static constexpr double kEfficiency[kPipelinedTileCount] = {0.80, 0.40, 0.68, 0.54, 0.38};
  // From the start of a block to its first FFMA and from the last to its end.
  static constexpr double kBlockCycles = 3000;
  // Starting a second kernel, and the bytes of sums that the L2 moves in a cycle.
  static constexpr double kReduceCycles = 4000;
  static constexpr double kReduceBytesPerCycle = 1600;
};

double CyclesOf(const SgemmProblem& problem, const DeviceLimits& limits, int tile_index,
                int64_t split_k, int64_t batch) {
  const PipelinedTile& tile = kPipelinedTiles[tile_index];
  const int64_t blocks =
      CeilDiv(problem.m, tile.block_m) * CeilDiv(problem.n, tile.block_n) * split_k * batch;
  const double k = static_cast<double>(CeilDiv(problem.k, split_k));
  const double ffma_cycles = tile.block_m * tile.block_n * k / 128;
  // A single block cannot hide its own latencies.
  const int64_t blocks_of_sm = CeilDiv(blocks, limits.sm_count);
  const double efficiency = Cost::kEfficiency[tile_index] * (blocks_of_sm == 1 ? 0.75 : 1.0);
  double cycles = Cost::kBlockCycles * CeilDiv(blocks_of_sm, tile.blocks_per_sm) +
                  blocks_of_sm * ffma_cycles / efficiency;
  if (split_k > 1) {
    const double bytes = 4.0 * problem.m * problem.n * (2 * split_k + 1) * batch;
    cycles += Cost::kReduceCycles + bytes / Cost::kReduceBytesPerCycle;
  }
  return cycles;
}

// A split sums at least this many k; shares are multiples of it, and so of every block_k.
constexpr int64_t kSplitGranularity = 64;
constexpr int64_t kMaxSplit = 1024;

// Up to this k slices are not worth their final sum, and large batches of such products are common:
// they get the tile without slices. H200, 512 x (128, 128, 128) (2026-11): 62 us, with the medium
// sliced tile 78 us.
constexpr int64_t kMaxDepthUnsliced = 128;

// A thread's sum over more k than this is made by several launches, each of which adds its part to
// C, for the sake of accuracy: rounding errors grow with the square root of the number of terms.
// H200, 8192^3 (2026-11): relF 1.6e-6 in one launch, where cuBLAS has 9.4e-7.
constexpr int64_t kMaxDepthOfLaunch = 4096;
constexpr int64_t kDepthOfLaunch = 2816;

// Where blocks of equal length store short sums over and over, the two blocks of an SM are kept
// apart by about the time that storing takes. H200, with 0, 3000 and 6000 cycles (2026-11):
// (4096, 4096, 64) 77.8, 63.6 and 64.1 us; 64 x (512, 512, 64) 77.3, 70.0 and 65.6 us;
// 512 x (128, 128, 128) 65.3, 61.4 and 60.3 us.
constexpr int64_t kMaxDepthStaggered = 512;
constexpr int kStaggerCycles = 6000;

bool IsStaggered(const SgemmPlan& plan, const DeviceLimits& limits) {
  const bool several_waves = plan.grid_blocks > int64_t{2} * limits.sm_count;
  return plan.tile == kLargeTile && plan.blocks_per_sm == 2 && several_waves &&
         plan.k_per_split <= kMaxDepthStaggered;
}

struct Choice {
  int tile = kLargeTile;
  int64_t split_k = 1;
};

int64_t KPerSplit(int64_t k, int64_t split_k) {
  return CeilDiv(CeilDiv(k, split_k), kSplitGranularity) * kSplitGranularity;
}

// The next larger split of which no share is empty. Splits in between are this one in disguise:
// their shares, rounded up, are as long. A product is planned whenever it runs, and k of 65536 has
// 64 splits of 1024 (all of them took the host of an H200 35 us, 2026-11).
int64_t NextSplit(int64_t k, int64_t split) {
  const int64_t longest = KPerSplit(k, split) / kSplitGranularity;
  return longest <= 1 ? kMaxSplit + 1 : CeilDiv(CeilDiv(k, kSplitGranularity), longest - 1);
}

// For how many members of the batch the order of summation is chosen: one, or all.
int64_t MembersToChooseFor(const SgemmProblem& problem) {
  return problem.for_batch ? problem.Batch() : 1;
}

// The cheapest tile and split for so many members of the batch. Where split_k is given it stays.
Choice ChooseFor(int64_t members, const SgemmProblem& problem, const DeviceLimits& limits,
                 int split_k) {
  Choice best;
  double least = -1;
  const int64_t most =
      split_k > 0 ? split_k : std::min(kMaxSplit, CeilDiv(problem.k, kSplitGranularity));
  for (int tile = 0; tile < kPipelinedTileCount; ++tile) {
    if (problem.k <= kMaxDepthUnsliced && kPipelinedTiles[tile].slices > 1) continue;
    for (int64_t split = split_k > 0 ? split_k : 1; split <= most;
         split = NextSplit(problem.k, split)) {
      const double cycles = CyclesOf(problem, limits, tile, split, members);
      if (least < 0 || cycles < least) {
        least = cycles;
        best = {tile, split};
      }
    }
  }
  return best;
}

// The cheapest tile for the whole batch among those that sum in the same order: slices share a
// stage, which is not as deep in the other engine.
int ChooseTile(const SgemmProblem& problem, const DeviceLimits& limits, const Choice& one) {
  const PipelinedTile& alone = kPipelinedTiles[one.tile];
  const Engine engine = EngineOf(problem, limits, alone);
  const int64_t batch = problem.Batch();
  int best = one.tile;
  for (int tile = 0; tile < kPipelinedTileCount; ++tile) {
    const PipelinedTile& candidate = kPipelinedTiles[tile];
    if (candidate.slices != alone.slices) continue;
    if (alone.slices > 1 && EngineOf(problem, limits, candidate) != engine) continue;
    if (CyclesOf(problem, limits, tile, one.split_k, batch) <
        CyclesOf(problem, limits, best, one.split_k, batch)) {
      best = tile;
    }
  }
  return best;
}

void PlanPipelined(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                   SgemmPlan& plan) {
  const Choice one = ChooseFor(MembersToChooseFor(problem), problem, limits, split_k);
  plan.tile = ChooseTile(problem, limits, one);
  plan.engine = EngineOf(problem, limits, kPipelinedTiles[plan.tile]);
  const PipelinedTile& tile = kPipelinedTiles[plan.tile];
  const bool a_along_k = !problem.trans_a, b_along_k = problem.trans_b;
  const PipelinedStages staging = StagesOf(tile, plan.engine, a_along_k, b_along_k);
  plan.block_m = tile.block_m;
  plan.block_n = tile.block_n;
  plan.block_k = staging.block_k;
  plan.thread_m = tile.thread_m;
  plan.thread_n = tile.thread_n;
  plan.slices = tile.slices;
  plan.block_threads = tile.Threads();
  plan.stages = staging.stages;
  plan.smem_bytes = SmemBytesOf(tile, plan.engine, a_along_k, b_along_k);
  plan.blocks_per_sm = BlocksPerSm(tile, plan.smem_bytes, limits);
  plan.split_k = static_cast<int>(one.split_k);
  if (one.split_k == 1 && problem.k > kMaxDepthOfLaunch * tile.slices) {
    plan.launches = static_cast<int>(CeilDiv(problem.k, kDepthOfLaunch * tile.slices));
  }
  plan.k_per_split = KPerSplit(problem.k, one.split_k * plan.launches);
}

void PlanRung(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan) {
  const Rung rung = RungOf(plan.algorithm);
  plan.block_m = rung.block_m;
  plan.block_n = rung.block_n;
  plan.block_k = rung.block_k;
  plan.thread_m = rung.thread_m;
  plan.thread_n = rung.thread_n;
  plan.block_threads = rung.block_threads;
  plan.blocks_per_sm = limits.threads_per_sm / rung.block_threads;
  plan.k_per_split = problem.k;
  if (rung.thread_m == 1) return;
  plan.blocks_per_sm = std::min(plan.blocks_per_sm, 2);  // by registers
  plan.pack_a = HasAlignedRowsA(problem) ? kPack : 1;
  plan.pack_b = HasAlignedRowsB(problem) ? kPack : 1;
}

// From so many elements on a thread of the kernel that adds up the splits of k takes a pack of
// them; fewer are spread over many threads.
constexpr int64_t kMinElementsInPacks = 1 << 18;

int ReducePackOf(const SgemmProblem& problem) {
  const int64_t elements = problem.m * problem.n * problem.Batch();
  const bool in_packs = problem.aligned_c && elements % kPack == 0;
  return in_packs && elements >= kMinElementsInPacks ? kPack : 1;
}

// Padding, which is a copy of an operand, for lines that begin at multiples of 16 bytes.
struct PaddingCost {
  // What the accelerator saves of a product's time. H200, without and with padding, its copies
  // counted (2026-11): (4097, 4095, 4093) 3159 and 2797 us, (8192, 50257, 768) 14980 and 12834,
  // 2047^3 420 and 384; by slices, (1501, 1502, 1503) 219 and 200.
  static constexpr double kSaved = 0.15;
  // Starting the copy, and the bytes that the memory moves in a cycle.
  static constexpr double kLaunchCycles = 5000;
  static constexpr double kBytesPerCycle = 2000;
  // Memory that may be taken without having been asked for.
  static constexpr double kMaxBytes = 2.0 * (1 << 30);
};

// Rows of A below which a shared B makes members of the batch into rows: tiles would be mostly
// empty otherwise. From here on a member is better off with its own tiles, and keeps the bits that
// it has alone.
constexpr int64_t kMaxRowsToFold = 64;

}  // namespace

SgemmProblem WithTallRows(SgemmProblem problem) {
  // One batch dimension that B lacks: it is A's, whose members lie side by side.
  const bool shared_b = problem.batch_dims == 1 && problem.batch[0].stride_b == 0;
  if (shared_b && !problem.trans_a && problem.m < kMaxRowsToFold) {
    problem.m *= problem.batch[0].size;
    problem.batch_dims = 0;
  }
  return problem;
}

SgemmProblem WithPadding(SgemmProblem problem, const DeviceLimits& limits, Algorithm algorithm) {
  const bool is_pipelined = algorithm == Algorithm::kAuto || algorithm == Algorithm::kPipelined;
  if (!is_pipelined) return problem;
  SgemmProblem padded = problem;
  padded.pad_a = static_cast<int>(-problem.PitchA() & 3);
  padded.pad_b = static_cast<int>(-problem.PitchB() & 3);
  const Choice one = ChooseFor(MembersToChooseFor(problem), padded, limits, 0);
  // Padding changes the engine, and so the order in which slices sum. So a member gets the padding
  // that it would get alone.
  const bool alone = kPipelinedTiles[one.tile].slices > 1 && !problem.for_batch;
  const int tile = alone ? one.tile : ChooseTile(padded, limits, one);
  if (EngineOf(padded, limits, kPipelinedTiles[tile]) != Engine::kTma) return problem;
  double cost = 0, bytes = 0;
  const auto add_copy = [&](int pad, int64_t elements, int64_t members) {
    if (pad == 0) return;
    const double copied = 4.0 * elements * (alone ? 1 : members);
    cost += PaddingCost::kLaunchCycles + 2 * copied / PaddingCost::kBytesPerCycle;
    bytes += copied;
  };
  add_copy(padded.pad_a, problem.m * problem.k, problem.MembersOf(&BatchDim::stride_a));
  add_copy(padded.pad_b, problem.k * problem.n, problem.MembersOf(&BatchDim::stride_b));
  const int64_t members = alone ? 1 : problem.Batch();
  const double cycles = CyclesOf(problem, limits, tile, one.split_k, members);
  const bool pays = cost < PaddingCost::kSaved * cycles && bytes <= PaddingCost::kMaxBytes;
  return pays ? padded : problem;
}

SgemmPlanResult PlanSgemm(const SgemmProblem& problem, const DeviceLimits& limits,
                          Algorithm algorithm, int split_k) {
  SgemmPlan plan;
  plan.algorithm = algorithm == Algorithm::kAuto ? Algorithm::kPipelined : algorithm;
  if (split_k < 0 || split_k > kMaxSplit) {
    return {plan, "split_k must be between 0 and " + std::to_string(kMaxSplit) + ", got " +
                      std::to_string(split_k)};
  }
  if (plan.algorithm == Algorithm::kPipelined) {
    PlanPipelined(problem, limits, split_k, plan);
  } else if (split_k > 1) {
    return {plan, std::string(NameOf(algorithm)) +
                      " does not split k; got split_k=" + std::to_string(split_k)};
  } else if (problem.pad_a + problem.pad_b > 0) {
    return {plan, std::string(NameOf(algorithm)) + " reads rows without padding only"};
  } else {
    PlanRung(problem, limits, plan);
  }
  plan.pad_a = problem.pad_a;
  plan.pad_b = problem.pad_b;
  plan.tiles_m = CeilDiv(problem.m, plan.block_m);
  plan.tiles_n = CeilDiv(problem.n, plan.block_n);
  const int64_t batch = problem.Batch();
  plan.grid_blocks = plan.tiles_m * plan.tiles_n * plan.split_k * batch;
  if (plan.grid_blocks >= int64_t{1} << 31) {
    return {plan, "the grid would have " + std::to_string(plan.grid_blocks) +
                      " blocks, more than a GPU takes"};
  }
  if (plan.algorithm == Algorithm::kPipelined) {
    plan.sm_count = limits.sm_count;
    plan.stagger_cycles = IsStaggered(plan, limits) ? kStaggerCycles : 0;
  }
  if (plan.split_k > 1) plan.partial_elements = problem.m * problem.n * plan.split_k * batch;
  if (problem.k == 0) plan.launches = 0;
  if (plan.split_k > 1 || problem.k == 0) plan.reduce_pack = ReducePackOf(problem);
  const bool stores_packs = plan.thread_n >= kPack && problem.n % kPack == 0;
  plan.pack_c = stores_packs && problem.aligned_c ? kPack : 1;
  return {plan, ""};
}

}  // namespace jaxkernels
