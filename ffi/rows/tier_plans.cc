#include "rows/tier_plans.h"

#include <algorithm>
#include <numeric>

#include "core/ceil_div.h"
#include "rows/long_row_rules.h"
#include "rows/register_rules.h"

namespace jaxkernels {
namespace {

// Threads per block in tier `block`: the fewest warps that hold the row.
int64_t BlockThreads(const RowProblem& problem, int pack) {
  const int packs_per_warp = 32 * (kBlockPacks / InputsOf(problem.operation));
  return CeilDiv(MaxPacksOfRow(problem.cols, pack, problem.offset), packs_per_warp) * 32;
}

// Rows per staged chunk: they fill whole packs, and are a multiple of the rows that a warp computes
// at once. Larger chunks are cheaper, as long as there are enough for all warps.
int64_t StagedRows(const RowProblem& problem, int lanes, const DeviceLimits& limits) {
  const int pack = PackOf(problem.dtype);
  const int64_t row_bytes = problem.cols * ByteWidth(problem.dtype);
  const int64_t warps = int64_t{limits.sm_count} * (limits.threads_per_sm / 32);
  const int chunk_bytes = kStagedChunkBytes[ArchOf(limits)];
  int64_t rows = std::max<int64_t>(32 / lanes, pack / std::gcd<int64_t>(problem.cols, pack));
  while (rows * row_bytes < chunk_bytes && 2 * rows * warps <= problem.rows) rows *= 2;
  return rows;
}

RowBatches BatchesOf(const RowProblem& problem, const RowPlan& plan, const DeviceLimits& limits) {
  const Arch arch = ArchOf(limits);
  const int blocks = plan.cluster_blocks;
  const int64_t at_once = WorkersAtOnce(arch, limits.sm_count, blocks, plan.blocks_per_sm);
  RowBatches batches;
  batches.halves = TakesRowsInBatches(problem.operation, arch, problem.dtype, blocks,
                                      plan.blocks_per_sm, CeilDiv(problem.rows, at_once));
  batches.workers = batches.halves ? at_once : BlocksOfWaves(plan.blocks_per_sm, limits) / blocks;
  batches.rounds = CeilDiv(problem.rows, batches.workers);
  return batches;
}

// The plan of FewRowsKernel: the same blocks per row, twice the threads, and one worker per row.
RowPlan FewRowsPlan(const RowProblem& problem, RowPlan plan, const DeviceLimits& limits) {
  plan.few_rows = true;
  plan.packs_per_lane = kFewRowsPacks / InputsOf(problem.operation);
  plan.block_threads *= 2;
  plan.smem_bytes = 0;
  plan.blocks_per_sm = BlocksPerSm(problem, plan.block_threads, 0, kFewRowsRegisters, limits);
  plan.batches = {};
  plan.batches.workers = std::max<int64_t>(problem.rows, 1);
  plan.batches.rounds = CeilDiv(problem.rows, plan.batches.workers);
  return plan;
}

int ReadBlocksPerSm(const RowProblem& problem, int warps, const DeviceLimits& limits) {
  const int leaf_bytes = StatisticsBytes(problem.operation, problem.dtype);
  return std::min(limits.registers_per_sm / (32 * kOneReadRegisters * warps),
                  limits.BlocksPerSm(32 * warps, ReadSmemBytes(leaf_bytes)));
}

// Warps per block that minimise the makespan, given the leaves per block. A block takes
// CeilDiv(leaves, warps) iterations plus kReadHalfTurnsOfRow half iterations.
int WarpsForLeaves(const RowProblem& problem, int64_t leaves, int64_t blocks, int most,
                   const DeviceLimits& limits) {
  const int half_turns_of_row = kReadHalfTurnsOfRow[ArchOf(limits)];
  int best = 1;
  int64_t least = INT64_MAX;
  for (int warps = 1; warps <= std::min<int64_t>(leaves, most); ++warps) {
    const int64_t at_once = int64_t{limits.sm_count} * ReadBlocksPerSm(problem, warps, limits);
    const int64_t time =
        CeilDiv(blocks, at_once) * (2 * CeilDiv(leaves, warps) + half_turns_of_row);
    if (time <= least) best = warps, least = time;
  }
  return best;
}

}  // namespace

int FindWarpShape(int64_t packs, Operation operation, DType dtype, bool aligned) {
  for (int i = 0; i < kWarpShapeCount; ++i) {
    const WarpShape& shape = kWarpShapes[i];
    if (!WarpShapeFits(shape, TraitsOf(operation), dtype, aligned)) continue;
    if (packs <= shape.lanes * shape.packs_per_lane) return i;
  }
  return -1;
}

void PlanWarp(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan) {
  const WarpShape shape =
      WarpShapeOf(plan.warp_shape, TraitsOf(problem.operation), problem.dtype, plan.aligned);
  plan.lanes = shape.lanes;
  plan.packs_per_lane = shape.packs_per_lane;
  plan.rows_per_access = shape.rows_per_access;
  plan.block_threads = kWarpTierThreads;
  plan.blocks_per_sm = BlocksPerSm(problem, kWarpTierThreads, 0, kWarpRegisters, limits);
  const int64_t rows_per_block = int64_t{kWarpTierThreads / shape.lanes} * shape.rows_per_access;
  plan.grid_blocks = GridBlocks(CeilDiv(problem.rows, rows_per_block), plan.blocks_per_sm, limits);
}

bool PrefersStaged(const RowProblem& problem, const DeviceLimits& limits, const RowPlan& plan,
                   int warp_shape) {
  const OperationTraits& traits = TraitsOf(problem.operation);
  if (!MayStage(traits) || problem.narrows) return false;
  if (problem.cols > MostStagedCols(traits, problem.dtype, problem.shifted)) return false;
  if (!plan.aligned) return true;
  return warp_shape >= 0 && LeavesLanesIdle(traits, ArchOf(limits), problem.dtype,
                                            problem.cols / plan.pack, kWarpShapes[warp_shape]);
}

void PlanWarpStaged(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan) {
  constexpr int kWarps = kStagedTierThreads / 32;
  plan.staged = true;
  plan.warp_shape = -1;
  plan.lanes = StagedRowLanes(problem.cols, problem.dtype);
  plan.elements_per_lane = StagedElements(problem.cols, problem.dtype);
  const int64_t rows = StagedRows(problem, plan.lanes, limits);
  plan.rows_per_access = static_cast<int>(rows);
  plan.row_spacing = StagedRowSpacing(problem.cols, problem.dtype, rows);
  plan.block_threads = kStagedTierThreads;
  const int64_t chunk_bytes =
      rows * problem.cols * ByteWidth(problem.dtype) + (plan.on_packs ? 0 : kPackBytes);
  plan.smem_bytes = static_cast<int>(chunk_bytes * InputsOf(problem.operation) * kWarps);
  plan.blocks_per_sm =
      BlocksPerSm(problem, plan.block_threads, plan.smem_bytes, kStagedRegisters, limits);
  plan.grid_blocks = GridBlocks(CeilDiv(problem.rows, rows * kWarps), plan.blocks_per_sm, limits);
}

int RowsOfBlocks(const RowProblem& problem, const DeviceLimits& limits) {
  const int pack = PackOf(problem.dtype);
  const int64_t threads = BlockThreads(problem, pack);
  if (threads > kMostBlockThreads) return 0;
  return BlocksPerSm(problem, static_cast<int>(threads), 0, BlockRegisters(problem.dtype), limits);
}

void PlanBlock(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan) {
  plan.tier = Tier::kBlock;
  plan.packs_per_lane = kBlockPacks / InputsOf(problem.operation);
  plan.block_threads = static_cast<int>(BlockThreads(problem, plan.pack));
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = RowsOfBlocks(problem, limits);
  plan.grid_blocks = std::clamp<int64_t>(problem.rows, 1, INT32_MAX);
}

SharedRow ShareRow(const RowProblem& problem, int blocks, const DeviceLimits& limits) {
  const int pack = PackOf(problem.dtype);
  const bool has_mask = problem.masks_logits || ScoresMayHaveMask(problem.operation);
  const int mask_words = has_mask ? MaskWords(pack) : 0;
  SharedRow row;
  const int64_t packs = MaxPacksOfRow(problem.cols, pack, problem.offset);
  row.slots = SmemSlots(packs, blocks);
  row.bytes = row.slots * (kPackBytes * InputsOf(problem.operation) + 4 * mask_words);
  if (row.bytes > SmemRoom(problem, limits)) return row;
  row.blocks = blocks;
  row.threads = LeastSmemThreads(ArchOf(limits), packs, blocks);
  row.blocks_per_sm =
      BlocksPerSm(problem, row.threads, static_cast<int>(row.bytes),
                  SmemRegisters(problem.dtype, InputsOf(problem.operation)), limits);
  return row;
}

SharedRow ShareRowOverCluster(const RowProblem& problem, const DeviceLimits& limits) {
  const Arch arch = ArchOf(limits);
  SharedRow row;
  for (const int blocks : kClusterBlocks) {
    const int wanted = blocks > kPortableClusterBlocks
                           ? kLeastSharesOfPortableCluster[arch]
                           : LeastSharesOfCluster(problem.operation, arch, problem.dtype);
    if (blocks > limits.cluster_blocks || row.blocks_per_sm >= wanted) break;
    row = ShareRow(problem, blocks, limits);
  }
  return row;
}

// Chooses the block size by occupancy like OneFlow's softmax: first the most resident blocks, then
// the most threads.
void PlanSharedRow(const RowProblem& problem, const SharedRow& row, const DeviceLimits& limits,
                   RowPlan& plan) {
  plan.tier = row.blocks == 1 ? Tier::kBlockSmem : Tier::kCluster;
  plan.cluster_blocks = row.blocks;
  plan.kept_packs = static_cast<int>(row.slots);
  plan.smem_bytes = static_cast<int>(row.bytes);
  plan.blocks_per_sm = row.blocks_per_sm;
  const int registers = SmemRegisters(problem.dtype, InputsOf(problem.operation));
  for (int threads = row.threads; threads <= kMostSmemThreads; threads += 32) {
    const int blocks = BlocksPerSm(problem, threads, plan.smem_bytes, registers, limits);
    if (blocks == plan.blocks_per_sm) plan.block_threads = threads;
  }
  plan.batches = BatchesOf(problem, plan, limits);
  if (FitsFewRowsLayout(problem.operation, problem.dtype, row.slots, plan.block_threads)) {
    const RowPlan few = FewRowsPlan(problem, plan, limits);
    const int64_t at_once =
        WorkersAtOnce(ArchOf(limits), limits.sm_count, row.blocks, few.blocks_per_sm);
    if (problem.rows <= MostFewRows(at_once, few.blocks_per_sm)) plan = few;
  }
  plan.lanes = plan.block_threads * row.blocks;
  plan.grid_blocks = std::max<int64_t>(plan.batches.CountWorkers(problem.rows), 1) * row.blocks;
}

void PlanBlockUncached(const RowProblem& problem, const DeviceLimits& limits, int64_t kept_packs,
                       int threads, RowPlan& plan) {
  const int pack_bytes = kPackBytes * InputsOf(problem.operation);
  const int64_t room = SmemRoom(problem, limits) / pack_bytes;
  plan.tier = Tier::kBlockUncached;
  plan.kept_packs =
      StoresElements(problem.operation) ? static_cast<int>(std::min(kept_packs, room)) : 0;
  plan.smem_bytes = plan.kept_packs * pack_bytes;
  plan.block_threads = threads;
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = BlocksPerSm(problem, threads, plan.smem_bytes, kLongRowRegisters, limits);
  plan.grid_blocks = GridBlocks(problem.rows, plan.blocks_per_sm, limits);
}

void PlanOneRead(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan) {
  constexpr int64_t kTurn = int64_t{32} * kOneReadPacks;
  const Arch arch = ArchOf(limits);
  const int most_warps = kMostReadWarps[arch];
  // The window can begin almost a cache line before the row.
  const int64_t packs = SmemSlots(MaxPacksOfRow(problem.cols, plan.pack, problem.offset), 1);
  plan.tier = Tier::kBlockUncached;
  plan.leaf_turns = static_cast<int>(CeilDiv(packs, kTurn * kMostReadLeaves));
  const int64_t leaves = CeilDiv(packs, kTurn * plan.leaf_turns);
  const int64_t blocks_at_once =
      int64_t{limits.sm_count} * ReadBlocksPerSm(problem, most_warps, limits);
  while (plan.cluster_blocks < std::min(kMostReadBlocks, limits.cluster_blocks) &&
         plan.cluster_blocks * most_warps < leaves &&
         2 * plan.cluster_blocks * problem.rows <= blocks_at_once) {
    plan.cluster_blocks *= 2;
  }
  const bool has_most_blocks = plan.cluster_blocks == kMostReadBlocks;
  plan.block_threads =
      32 * WarpsForLeaves(problem, CeilDiv(leaves, plan.cluster_blocks),
                          problem.rows * plan.cluster_blocks,
                          has_most_blocks ? kMostReadWarpsOfFew[arch] : most_warps, limits);
  plan.lanes = plan.block_threads * plan.cluster_blocks;
  plan.blocks_per_sm = ReadBlocksPerSm(problem, plan.block_threads / 32, limits);
  plan.grid_blocks =
      std::clamp<int64_t>(problem.rows, 1, INT32_MAX / kMostReadBlocks) * plan.cluster_blocks;
}

void PlanGathered(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan) {
  const int64_t packs = SmemSlots(MaxPacksOfRow(problem.cols, plan.pack, problem.offset), 1);
  const int packs_of_warp = 32 * (kUncachedPacksInFlight / InputsOf(problem.operation));
  const int64_t threads = 32 * CeilDiv(packs, packs_of_warp);
  PlanBlockUncached(
      problem, limits, packs,
      static_cast<int>(std::clamp<int64_t>(threads, kLeastGatheringThreads, kUncachedThreads)),
      plan);
}

void PlanStream(const RowProblem& problem, const DeviceLimits& limits, RowPlan& plan) {
  const Arch arch = ArchOf(limits);
  const int64_t packs =
      MaxPacksOfRow(problem.cols, plan.pack, problem.offset) * InputsOf(problem.operation);
  plan.tier = Tier::kStream;
  plan.part = problem.part;
  plan.warp_shape = -1;
  plan.block_threads = kStreamThreads;
  plan.lanes = packs <= kMostPacksOfStreamingLanes[arch]  ? kStreamLanes
               : packs <= kMostPacksOfStreamingWarp[arch] ? 32
                                                          : kStreamThreads;
  plan.blocks_per_sm = BlocksPerSm(problem, kStreamThreads, 0, kLongRowRegisters, limits);
  plan.branches = 1;
  if (problem.part != Part::kStatistics && plan.lanes == kStreamThreads) {
    plan.branches = static_cast<int>(CeilDiv(packs, kStreamPartPacks[arch]));
  }
  const int64_t blocks = CeilDiv(problem.rows * plan.branches, kStreamThreads / plan.lanes);
  plan.grid_blocks = GridBlocks(blocks, plan.blocks_per_sm, limits);
}

}  // namespace jaxkernels
