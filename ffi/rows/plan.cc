#include "rows/plan.h"

namespace jaxkernels {
namespace {

// The first layout that covers `packs`, or -1.
int FindWarpShape(int64_t packs, int pack, int inputs, bool hides, bool aligned) {
  for (int i = 0; i < kWarpShapeCount; ++i) {
    const WarpShape& shape = kWarpShapes[i];
    if (!WarpShapeFits(shape, pack, inputs, hides, aligned)) continue;
    if (packs <= shape.lanes * shape.packs_per_lane) return i;
  }
  return -1;
}

// What the reductions of a block take of its shared memory.
int ScratchBytes(const SoftmaxProblem& problem) {
  return ReductionScratchBytes(PackOf(problem.dtype), SumsOf(problem.operation));
}

int BlocksPerSm(const SoftmaxProblem& problem, int threads, int smem_bytes, int registers,
                const DeviceLimits& limits) {
  const int by_smem =
      limits.smem_per_sm / (smem_bytes + ScratchBytes(problem) + kReservedSmemPerBlock);
  const int by_registers = limits.registers_per_sm / (registers * threads);
  return std::min({limits.threads_per_sm / threads, by_smem, by_registers, limits.blocks_per_sm});
}

// Dynamic shared memory that a block may have.
int SmemRoom(const SoftmaxProblem& problem, const DeviceLimits& limits) {
  return limits.smem_per_block - ScratchBytes(problem);
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t BlocksOfWaves(int blocks_per_sm, const DeviceLimits& limits) {
  return int64_t{kWaves} * limits.sm_count * std::max(blocks_per_sm, 1);
}

int64_t GridBlocks(int64_t blocks_of_work, int blocks_per_sm, const DeviceLimits& limits) {
  return std::clamp<int64_t>(blocks_of_work, 1, BlocksOfWaves(blocks_per_sm, limits));
}

void PlanWarp(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const WarpShape& shape = kWarpShapes[plan.warp_shape];
  plan.lanes = shape.lanes;
  plan.packs_per_lane = shape.packs_per_lane;
  plan.rows_per_access = shape.rows_per_access;
  plan.block_threads = kWarpTierThreads;
  plan.blocks_per_sm = BlocksPerSm(problem, kWarpTierThreads, 0, 32, limits);
  const int64_t rows_per_block = int64_t{kWarpTierThreads / shape.lanes} * shape.rows_per_access;
  plan.grid_blocks = GridBlocks(CeilDiv(problem.rows, rows_per_block), plan.blocks_per_sm, limits);
}

// Bytes of the 32 rows that a warp stages at a time.
int64_t StagedWarpBytes(const SoftmaxProblem& problem) {
  const bool on_packs = problem.offset == 0 && !problem.shifted;
  return StagedBytes(problem.cols * ByteWidth(problem.dtype), on_packs,
                     InputsOf(problem.operation));
}

int64_t MostStagedBytes(const SoftmaxProblem& problem) {
  return StagedRowLanes(problem.cols, PackOf(problem.dtype)) > 1 ? kSharedRowsWarpBytes
                                                                 : kStagedWarpBytes;
}

void PlanWarpStaged(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  constexpr int kWarps = kStagedTierThreads / 32;
  plan.staged = true;
  plan.warp_shape = -1;
  plan.lanes = StagedRowLanes(problem.cols, plan.pack);
  plan.rows_per_access = 32;
  plan.block_threads = kStagedTierThreads;
  plan.smem_bytes = static_cast<int>(StagedWarpBytes(problem) * kWarps);
  plan.blocks_per_sm = BlocksPerSm(problem, plan.block_threads, plan.smem_bytes, 64, limits);
  plan.grid_blocks = GridBlocks(CeilDiv(problem.rows, 32 * kWarps), plan.blocks_per_sm, limits);
}

// Threads of the tier `block`: as many warps as the row needs.
int64_t BlockThreads(const SoftmaxProblem& problem, int pack) {
  const int packs_per_warp = 32 * (kBlockPacks / InputsOf(problem.operation));
  return CeilDiv(MaxPacksOfRow(problem.cols, pack, problem.offset), packs_per_warp) * 32;
}

// Blocks of the tier `block`, and so rows, on an SM at once; none where a block cannot hold a row.
int RowsOfBlocks(const SoftmaxProblem& problem, int pack, const DeviceLimits& limits) {
  const int64_t threads = BlockThreads(problem, pack);
  if (threads > kMostBlockThreads) return 0;
  return BlocksPerSm(problem, static_cast<int>(threads), 0, BlockRegisters(pack), limits);
}

// A block for each row.
void PlanBlock(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  plan.tier = Tier::kBlock;
  plan.packs_per_lane = kBlockPacks / InputsOf(problem.operation);
  plan.block_threads = static_cast<int>(BlockThreads(problem, plan.pack));
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = RowsOfBlocks(problem, plan.pack, limits);
  plan.grid_blocks = std::clamp<int64_t>(problem.rows, 1, INT32_MAX);
}

// Shared memory of each of the blocks that share a row.
struct SharedRow {
  int blocks = 0;  // none: the row does not fit
  int64_t slots = 0;
  int64_t bytes = 0;
  int blocks_per_sm = 0;  // at most
};

SharedRow ShareRow(const SoftmaxProblem& problem, int pack, int blocks,
                   const DeviceLimits& limits) {
  const int mask_words = HasMask(problem.operation) ? MaskWords(pack) : 0;
  SharedRow row;
  row.slots = SmemSlots(MaxPacksOfRow(problem.cols, pack, problem.offset), blocks);
  row.bytes = row.slots * (kPackBytes * InputsOf(problem.operation) + 4 * mask_words);
  if (row.bytes > SmemRoom(problem, limits)) return row;
  row.blocks = blocks;
  row.blocks_per_sm = BlocksPerSm(problem, kLeastSmemThreads, static_cast<int>(row.bytes),
                                  SmemRegisters(pack, InputsOf(problem.operation)), limits);
  return row;
}

// Over a cluster.
SharedRow ShareRowOverCluster(const SoftmaxProblem& problem, int pack, const DeviceLimits& limits) {
  SharedRow row;
  for (const int blocks : kClusterBlocks) {
    const int wanted = blocks > kPortableClusterBlocks ? kLeastRowsOfBlocks : kLeastSharesOfCluster;
    if (blocks > limits.cluster_blocks || row.blocks_per_sm >= wanted) break;
    row = ShareRow(problem, pack, blocks, limits);
  }
  return row;
}

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

// Block size by occupancy, as OneFlow's softmax chooses it: the most resident blocks first, then
// the most threads.
void PlanSharedRow(const SoftmaxProblem& problem, const SharedRow& row, const DeviceLimits& limits,
                   SoftmaxPlan& plan) {
  plan.tier = row.blocks == 1 ? Tier::kBlockSmem : Tier::kCluster;
  plan.cluster_blocks = row.blocks;
  plan.kept_packs = static_cast<int>(row.slots);
  plan.smem_bytes = static_cast<int>(row.bytes);
  plan.blocks_per_sm = row.blocks_per_sm;
  const int registers = SmemRegisters(plan.pack, InputsOf(problem.operation));
  for (int threads = kLeastSmemThreads; threads <= kMostSmemThreads; threads += 32) {
    const int blocks = BlocksPerSm(problem, threads, plan.smem_bytes, registers, limits);
    if (blocks == plan.blocks_per_sm) plan.block_threads = threads;
  }
  plan.lanes = plan.block_threads * row.blocks;
  plan.batches = BatchesOf(problem, plan, limits);
  plan.grid_blocks = std::max<int64_t>(plan.batches.CountWorkers(problem.rows), 1) * row.blocks;
}

// Keeps up to `kept_packs` of a row, if it is read again.
void PlanBlockUncached(const SoftmaxProblem& problem, const DeviceLimits& limits,
                       int64_t kept_packs, int threads, SoftmaxPlan& plan) {
  const int pack_bytes = kPackBytes * InputsOf(problem.operation);
  const int64_t room = SmemRoom(problem, limits) / pack_bytes;
  plan.tier = Tier::kBlockUncached;
  plan.kept_packs =
      StoresScalar(problem.operation) ? 0 : static_cast<int>(std::min(kept_packs, room));
  plan.smem_bytes = plan.kept_packs * pack_bytes;
  plan.block_threads = threads;
  plan.lanes = plan.block_threads;
  plan.blocks_per_sm = BlocksPerSm(problem, threads, plan.smem_bytes, kLongRowRegisters, limits);
  plan.grid_blocks = GridBlocks(problem.rows, plan.blocks_per_sm, limits);
}

// Rows of inputs that are gathered: as many threads as have the row in flight at once.
void PlanGathered(const SoftmaxProblem& problem, const DeviceLimits& limits, SoftmaxPlan& plan) {
  const int64_t packs = SmemSlots(MaxPacksOfRow(problem.cols, plan.pack, problem.offset), 1);
  const int packs_of_warp = 32 * (kUncachedPacksInFlight / InputsOf(problem.operation));
  const int64_t threads = 32 * CeilDiv(packs, packs_of_warp);
  PlanBlockUncached(
      problem, limits, packs,
      static_cast<int>(std::clamp<int64_t>(threads, kLeastGatheringThreads, kUncachedThreads)),
      plan);
}

// The parts of an operation: nothing is kept, so that rows of any length go one way.
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
  plan.blocks_per_sm = BlocksPerSm(problem, kStreamThreads, 0, kLongRowRegisters, limits);
  const int64_t blocks = CeilDiv(problem.rows, kStreamThreads / plan.lanes);
  plan.grid_blocks = GridBlocks(blocks, plan.blocks_per_sm, limits);
}

SoftmaxPlanResult PlanOnTier(const SoftmaxProblem& problem, const DeviceLimits& limits) {
  SoftmaxPlan plan;
  const int inputs = InputsOf(problem.operation);
  plan.pack = PackOf(problem.dtype);
  plan.offset = problem.offset;
  plan.on_packs = problem.offset == 0 && !problem.shifted;
  plan.aligned = problem.cols % plan.pack == 0 && plan.on_packs && problem.broadcast_aligned;
  const int64_t packs = MaxPacksOfRow(problem.cols, plan.pack, problem.offset);
  // The kernels count packs in 32 bits and stride over them by some thousands.
  if (packs > INT32_MAX - (1 << 16))
    return {{},
            "cols=" + std::to_string(problem.cols) + " is about 2^31 packs of 16 bytes or more"};
  if (problem.part != Part::kWhole) {
    PlanStream(problem, limits, plan);
    return {plan, ""};
  }

  const SharedRow of_block = ShareRow(problem, plan.pack, 1, limits);
  const SharedRow of_cluster = ShareRowOverCluster(problem, plan.pack, limits);
  plan.warp_shape = FindWarpShape(packs, plan.pack, inputs, Hides(problem.operation), plan.aligned);
  const bool stages = !plan.aligned && SharesRows(problem.operation) &&
                      StagedWarpBytes(problem) <= MostStagedBytes(problem);
  const bool warp_fits = stages || plan.warp_shape >= 0;
  const int rows_of_blocks = RowsOfBlocks(problem, plan.pack, limits);

  Tier tier = problem.tier;
  const bool takes_staged = stages && (tier == Tier::kAuto || tier == Tier::kWarp);
  if (problem.shifted && !takes_staged) {
    if (tier != Tier::kAuto && tier != Tier::kBlockUncached) {
      return {{}, "the tier needs inputs that begin where the result does within 16 bytes"};
    }
    plan.warp_shape = -1;
    PlanGathered(problem, limits, plan);
    return {plan, ""};
  }
  if (tier == Tier::kAuto) {
    const bool takes_block =
        rows_of_blocks >= kLeastRowsOfBlocks && PrefersBlock(problem.operation, plan.aligned);
    const bool takes_cluster = of_block.blocks_per_sm < kLeastRowsOfBlocks && of_cluster.blocks > 0;
    tier = warp_fits             ? Tier::kWarp
           : takes_block         ? Tier::kBlock
           : takes_cluster       ? Tier::kCluster
           : of_block.blocks > 0 ? Tier::kBlockSmem
                                 : Tier::kBlockUncached;
  }
  if (tier == Tier::kStream) return {{}, "tier 'stream' serves the parts of an operation only"};
  if (tier == Tier::kWarp && !warp_fits) {
    return {{},
            "tier 'warp' cannot hold a row of " + std::to_string(packs) +
                " packs of 16 bytes in the registers of a warp"};
  }
  if (tier == Tier::kBlock && rows_of_blocks == 0) {
    return {{},
            "tier 'block' cannot hold a row of " + std::to_string(packs) +
                " packs of 16 bytes in the registers of a block"};
  }
  if (tier == Tier::kBlockSmem && of_block.blocks == 0) {
    return {{},
            "tier 'block_smem' needs " + std::to_string(of_block.bytes) +
                " bytes of shared memory for a row, and " + limits.name + " grants a block " +
                std::to_string(SmemRoom(problem, limits))};
  }
  if (tier == Tier::kCluster && limits.cluster_blocks <= 1) {
    return {{},
            "tier 'cluster' needs a GPU of compute capability 9.0 or later and code that was "
            "compiled for it; " +
                limits.name + " has no clusters here"};
  }
  if (tier == Tier::kCluster && of_cluster.blocks == 0) {
    return {{},
            "tier 'cluster' needs " + std::to_string(of_cluster.bytes) +
                " bytes of shared memory in each of " + std::to_string(limits.cluster_blocks) +
                " blocks for a row, and " + limits.name + " grants a block " +
                std::to_string(SmemRoom(problem, limits))};
  }
  if (tier != Tier::kWarp) plan.warp_shape = -1;
  switch (tier) {
    case Tier::kWarp:
      plan.tier = Tier::kWarp;
      stages ? PlanWarpStaged(problem, limits, plan) : PlanWarp(problem, limits, plan);
      break;
    case Tier::kBlock:
      PlanBlock(problem, limits, plan);
      break;
    case Tier::kBlockSmem:
      PlanSharedRow(problem, of_block, limits, plan);
      break;
    case Tier::kCluster:
      PlanSharedRow(problem, of_cluster, limits, plan);
      break;
    default:
      // A row that would fit keeps nothing: the tier was asked for, so it shows what two reads
      // cost.
      PlanBlockUncached(problem, limits, of_block.blocks > 0 ? 0 : INT32_MAX, kUncachedThreads,
                        plan);
  }
  return {plan, ""};
}

}  // namespace

SoftmaxPlanResult PlanSoftmax(const SoftmaxProblem& problem, const DeviceLimits& limits) {
  const SoftmaxPlanResult planned = PlanOnTier(problem, limits);
  const bool is_misaligned = problem.offset != 0 || problem.shifted || !problem.broadcast_aligned;
  if (planned.error.empty() || problem.tier == Tier::kAuto || !is_misaligned) return planned;
  // Where an array begins is known only when the program runs. A forced tier that would hold these
  // rows if they were aligned is no mistake of the user's.
  SoftmaxProblem aligned = problem, anywhere = problem;
  aligned.offset = 0;
  aligned.shifted = false;
  aligned.broadcast_aligned = true;
  anywhere.tier = Tier::kAuto;
  return PlanOnTier(aligned, limits).error.empty() ? PlanOnTier(anywhere, limits) : planned;
}

}  // namespace jaxkernels
