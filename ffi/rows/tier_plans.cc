#include "rows/tier_plans.h"

namespace jaxkernels {
namespace {

// Blocks of `smem_bytes` of shared memory, in all, that an SM holds at once.
int BlocksPerSm(int threads, int64_t smem_bytes, int registers, const DeviceLimits& limits) {
  const int by_smem = static_cast<int>(limits.smem_per_sm / (smem_bytes + kReservedSmemPerBlock));
  const int by_registers = limits.registers_per_sm / (registers * threads);
  return std::min({limits.threads_per_sm / threads, by_smem, by_registers, limits.blocks_per_sm});
}

// Bytes of a table of statistics that the blocks of a row fill by turns.
int64_t TableBytes(const SoftmaxProblem& problem, int64_t leaves) {
  return 2 * leaves * StatisticsBytes(PackOf(problem.dtype), SumsOf(problem.operation));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t BlocksOfWaves(int blocks_per_sm, const DeviceLimits& limits) {
  return int64_t{kWaves} * limits.sm_count * std::max(blocks_per_sm, 1);
}

int64_t GridBlocks(int64_t blocks_of_work, int blocks_per_sm, const DeviceLimits& limits) {
  return std::clamp<int64_t>(blocks_of_work, 1, BlocksOfWaves(blocks_per_sm, limits));
}

// Bytes of the 32 rows that a warp stages at a time.
int64_t StagedWarpBytes(const SoftmaxProblem& problem) {
  const bool on_packs = problem.offset == 0 && !problem.shifted;
  return StagedBytes(problem.cols * ByteWidth(problem.dtype), on_packs,
                     InputsOf(problem.operation));
}

// Leaves of a row of the tier `block`, a warp for each.
int64_t LeavesOfBlock(const SoftmaxProblem& problem) {
  const int turns = kBlockPacks / InputsOf(problem.operation);
  return CountLeaves(problem.cols, PackOf(problem.dtype), turns);
}

// Bytes of a block's leaves in shared memory, of `slots` packs each, with their masks.
int64_t LeafBytes(const SoftmaxProblem& problem, int64_t leaves, int64_t slots) {
  const int mask_words = HasMask(problem.operation) ? MaskWords(PackOf(problem.dtype)) : 0;
  return leaves * slots * (kPackBytes * InputsOf(problem.operation) + 4 * mask_words);
}

// Warps of a block that shares a row, and its blocks on an SM: the most blocks first, then the most
// warps.
struct WarpsOfBlock {
  int warps = 0, blocks_per_sm = 0;
};
template <typename BytesOf>
WarpsOfBlock ChooseWarps(const SoftmaxProblem& problem, int64_t most_warps, BytesOf bytes_of,
                         const DeviceLimits& limits) {
  const int registers = SmemRegisters(PackOf(problem.dtype), InputsOf(problem.operation));
  WarpsOfBlock chosen;
  for (int64_t warps = std::min(most_warps, int64_t{kLeastSmemThreads / 32});
       warps <= std::min(most_warps, int64_t{kMostSmemThreads / 32}); ++warps) {
    const int64_t bytes = bytes_of(warps);
    if (bytes > SmemRoom(limits)) continue;
    const int blocks =
        BlocksPerSm(static_cast<int>(32 * warps), bytes + kSmemLineBytes, registers, limits);
    if (blocks >= chosen.blocks_per_sm) chosen = {static_cast<int>(warps), blocks};
  }
  return chosen;
}

// The same if each warp has one leaf, which it has where the row takes its own tier.
WarpsOfBlock WarpsOfLeaves(const SoftmaxProblem& problem, int blocks, const DeviceLimits& limits) {
  const int64_t packs = CeilDiv(problem.cols, PackOf(problem.dtype));
  const auto bytes_of = [&](int64_t warps) {
    const int64_t turns = CeilDiv(packs, 32 * blocks * warps);
    return LeafBytes(problem, warps, 32 * turns + kLinePacks) +
           TableBytes(problem, blocks * warps);
  };
  return ChooseWarps(problem, kMostSmemThreads / 32, bytes_of, limits);
}

}  // namespace

int SmemRoom(const DeviceLimits& limits) { return limits.smem_per_block - kSmemLineBytes; }

int LeafTurns(const SoftmaxProblem& problem, const DeviceLimits& limits) {
  if (LeavesOfBlock(problem) <= kMostBlockThreads / 32) {
    return kBlockPacks / InputsOf(problem.operation);
  }
  const int64_t packs = CeilDiv(problem.cols, PackOf(problem.dtype));
  int blocks = 1;
  WarpsOfBlock chosen = WarpsOfLeaves(problem, blocks, limits);
  if (chosen.blocks_per_sm < kLeastRowsOfBlocks) {
    for (const int more : kClusterBlocks) {
      if (!WantsMoreBlocks(more, chosen.blocks_per_sm, limits)) break;
      blocks = more;
      chosen = WarpsOfLeaves(problem, blocks, limits);
    }
  }
  const int64_t warps = chosen.warps > 0 ? blocks * chosen.warps : kMostLeaves;
  return static_cast<int>(CeilDiv(packs, 32 * std::min<int64_t>(warps, kMostLeaves)));
}

int FindWarpShape(int64_t packs, Operation operation, int pack, bool aligned) {
  for (int i = 0; i < kWarpShapeCount; ++i) {
    const WarpShape& shape = kWarpShapes[i];
    if (!WarpShapeFits(shape, TraitsOf(operation), pack, aligned)) continue;
    if (packs <= shape.lanes * shape.packs_per_lane) return i;
  }
  return -1;
}

void PlanWarp(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const WarpShape& shape = kWarpShapes[plan.warp_shape];
  plan.lanes = shape.lanes;
  plan.packs_per_lane = shape.packs_per_lane;
  plan.rows_per_access = shape.rows_per_access;
  plan.block_threads = kWarpTierThreads;
  plan.blocks_per_sm = BlocksPerSm(kWarpTierThreads, 0, 32, limits);
  const int64_t rows_per_block = int64_t{kWarpTierThreads / shape.lanes} * shape.rows_per_access;
  plan.grid_blocks = GridBlocks(CeilDiv(problem.rows, rows_per_block), plan.blocks_per_sm, limits);
}

bool MayStage(const SoftmaxProblem& problem) {
  const bool shared = StagedRowLanes(problem.cols, PackOf(problem.dtype)) > 1;
  return SharesRows(problem.operation) &&
         StagedWarpBytes(problem) <= (shared ? kSharedRowsWarpBytes : kStagedWarpBytes);
}

void PlanWarpStaged(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  constexpr int kWarps = kStagedTierThreads / 32;
  plan.staged = true;
  plan.warp_shape = -1;
  plan.lanes = StagedRowLanes(problem.cols, plan.pack);
  plan.rows_per_access = 32;
  plan.block_threads = kStagedTierThreads;
  plan.smem_bytes = static_cast<int>(StagedWarpBytes(problem) * kWarps);
  plan.blocks_per_sm = BlocksPerSm(plan.block_threads, plan.smem_bytes, 64, limits);
  plan.grid_blocks = GridBlocks(CeilDiv(problem.rows, 32 * kWarps), plan.blocks_per_sm, limits);
}

int RowsOfBlocks(const SoftmaxProblem& problem, const DeviceLimits& limits) {
  const int64_t threads = 32 * LeavesOfBlock(problem);
  if (threads > kMostBlockThreads) return 0;
  return BlocksPerSm(static_cast<int>(threads), TableBytes(problem, kMostBlockThreads / 32),
                     BlockRegisters(PackOf(problem.dtype)), limits);
}

void PlanBlock(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  plan.tier = Tier::kBlock;
  plan.packs_per_lane = kBlockPacks / InputsOf(problem.operation);
  plan.block_threads = static_cast<int>(32 * LeavesOfBlock(problem));
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = RowsOfBlocks(problem, limits);
  plan.grid_blocks = std::clamp<int64_t>(problem.rows, 1, INT32_MAX);
}

SharedRow ShareRow(const SoftmaxProblem& problem, int turns, int blocks,
                   const DeviceLimits& limits) {
  // A window may begin up to seven packs before the row, at a cache line.
  const bool at_lines =
      problem.cols % (kSmemLineBytes / ByteWidth(problem.dtype)) == 0 && problem.offset == 0;
  SharedRow row;
  row.leaf_slots = 32 * turns + (at_lines ? 0 : kLinePacks);
  row.leaves = CeilDiv(CountLeaves(problem.cols, PackOf(problem.dtype), turns), blocks);
  row.bytes = LeafBytes(problem, row.leaves, row.leaf_slots) +
              TableBytes(problem, row.leaves * blocks);
  const WarpsOfBlock chosen =
      ChooseWarps(problem, row.leaves, [&](int64_t) { return row.bytes; }, limits);
  row.warps = chosen.warps;
  row.blocks_per_sm = chosen.blocks_per_sm;
  if (chosen.warps > 0) row.blocks = blocks;
  return row;
}

SharedRow ShareRowOverCluster(const SoftmaxProblem& problem, int turns,
                              const DeviceLimits& limits) {
  SharedRow row;
  for (const int blocks : kClusterBlocks) {
    if (!WantsMoreBlocks(blocks, row.blocks_per_sm, limits)) break;
    row = ShareRow(problem, turns, blocks, limits);
  }
  return row;
}

namespace {

RowBatches BatchesOf(const SoftmaxProblem& problem, const SoftmaxPlan& plan,
                     const DeviceLimits& limits) {
  const int blocks = plan.cluster_blocks;
  RowBatches batches;
  batches.halves = TakesRowsInBatches(problem.operation, plan.pack, blocks, plan.blocks_per_sm);
  batches.workers = batches.halves ? WorkersAtOnce(limits.sm_count, blocks, plan.blocks_per_sm)
                                   : BlocksOfWaves(plan.blocks_per_sm, limits) / blocks;
  batches.rounds = CeilDiv(problem.rows, batches.workers);
  return batches;
}

}  // namespace

// Block size by occupancy, as OneFlow's softmax chooses it.
void PlanSharedRow(const SoftmaxProblem& problem, const SharedRow& row, const DeviceLimits& limits,
                   SoftmaxPlan& plan) {
  plan.tier = row.blocks == 1 ? Tier::kBlockSmem : Tier::kCluster;
  plan.cluster_blocks = row.blocks;
  plan.leaves = static_cast<int>(row.leaves);
  plan.leaf_slots = row.leaf_slots;
  plan.smem_bytes = static_cast<int>(row.bytes);
  plan.blocks_per_sm = row.blocks_per_sm;
  plan.block_threads = 32 * row.warps;
  plan.lanes = plan.block_threads * row.blocks;
  plan.batches = BatchesOf(problem, plan, limits);
  plan.grid_blocks = std::max<int64_t>(plan.batches.CountWorkers(problem.rows), 1) * row.blocks;
}

void PlanBlockUncached(const SoftmaxProblem& problem, const DeviceLimits& limits,
                       int64_t kept_packs, int threads, SoftmaxPlan& plan) {
  const int pack_bytes = kPackBytes * InputsOf(problem.operation);
  const int64_t leaves = CountLeaves(problem.cols, plan.pack, plan.leaf_turns);
  const int table_bytes = static_cast<int>(TableBytes(problem, leaves));
  const int64_t room = (limits.smem_per_block - table_bytes) / pack_bytes;
  plan.tier = Tier::kBlockUncached;
  plan.kept_packs =
      StoresScalar(problem.operation) ? 0 : static_cast<int>(std::min(kept_packs, room));
  plan.smem_bytes = plan.kept_packs * pack_bytes + table_bytes;
  plan.block_threads = threads;
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = BlocksPerSm(threads, plan.smem_bytes, kLongRowRegisters, limits);
  plan.grid_blocks = GridBlocks(problem.rows, plan.blocks_per_sm, limits);
}

void PlanGathered(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const int64_t packs = MaxPacksOfRow(problem.cols, plan.pack, problem.offset) + kLinePacks - 1;
  const int64_t threads = 32 * CountLeaves(problem.cols, plan.pack, plan.leaf_turns);
  PlanBlockUncached(
      problem, limits, packs,
      static_cast<int>(std::clamp<int64_t>(threads, kLeastGatheringThreads, kUncachedThreads)),
      plan);
}

void PlanStream(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const int64_t packs =
      MaxPacksOfRow(problem.cols, plan.pack, problem.offset) * InputsOf(problem.operation);
  plan.tier = Tier::kStream;
  plan.part = problem.part;
  plan.warp_shape = -1;
  plan.block_threads = kStreamThreads;
  plan.lanes = packs <= kMostPacksOfStreamingLanes  ? kStreamLanes
               : packs <= kMostPacksOfStreamingWarp ? 32
                                                    : kStreamThreads;
  plan.blocks_per_sm = BlocksPerSm(kStreamThreads, 0, kLongRowRegisters, limits);
  const int64_t blocks = CeilDiv(problem.rows, kStreamThreads / plan.lanes);
  plan.grid_blocks = GridBlocks(blocks, plan.blocks_per_sm, limits);
}

}  // namespace jaxkernels
