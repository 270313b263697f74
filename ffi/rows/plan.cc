#include "rows/plan.h"

#include "rows/long_row_rules.h"
#include "rows/register_rules.h"
#include "rows/smem_rules.h"
#include "rows/tier_plans.h"

namespace jaxkernels {
namespace {

struct TierChoices {
  bool stages;  // short rows in the warp tier
  int warp_shape;
  int rows_of_blocks;
  SharedRow of_block, of_cluster;

  bool WarpFits() const { return stages || warp_shape >= 0; }
  // Whether the row fits neither in registers nor in shared memory, even of a cluster.
  bool TooLong() const {
    return !WarpFits() && rows_of_blocks == 0 && of_block.blocks == 0 && of_cluster.blocks == 0;
  }
};

TierChoices ChoicesOf(const RowProblem& problem, const RowPlan& plan, const DeviceLimits& limits) {
  const int64_t packs = MaxPacksOfRow(problem.cols, plan.pack, problem.offset);
  TierChoices choices;
  choices.warp_shape = FindWarpShape(packs, problem.operation, problem.dtype, plan.aligned);
  choices.stages = PrefersStaged(problem, limits, plan, choices.warp_shape);
  choices.rows_of_blocks = RowsOfBlocks(problem, limits);
  choices.of_block = ShareRow(problem, 1, limits);
  choices.of_cluster = ShareRowOverCluster(problem, limits);
  return choices;
}

// The fastest tier, by the measurements in the rules.
Tier BestTier(const RowProblem& problem, const RowPlan& plan, const TierChoices& choices,
              Arch arch) {
  if (choices.WarpFits()) return Tier::kWarp;
  if (choices.rows_of_blocks >= kLeastRowsOfBlocks[arch] &&
      PrefersBlock(problem.operation, arch, problem.dtype, plan.aligned, problem.cols)) {
    return Tier::kBlock;
  }
  if (IsReadInLeaves(problem.operation)) return Tier::kBlockUncached;
  const bool holds_few =
      choices.of_block.blocks_per_sm < LeastRowsAlone(problem.operation, arch, problem.dtype);
  if (holds_few && choices.of_cluster.blocks > 0) return Tier::kCluster;
  return choices.of_block.blocks > 0 ? Tier::kBlockSmem : Tier::kBlockUncached;
}

// Why a tier cannot handle a problem; empty if it can.
std::string WhyNot(Tier tier, const RowProblem& problem, const TierChoices& choices,
                   const DeviceLimits& limits) {
  const auto row = [&] {
    return std::to_string(MaxPacksOfRow(problem.cols, PackOf(problem.dtype), problem.offset)) +
           " packs of 16 bytes";
  };
  const auto room = [&] {
    return limits.name + " grants a block " + std::to_string(SmemRoom(problem, limits));
  };
  switch (tier) {
    case Tier::kStream:
      return "tier 'stream' serves the parts of operations, and those without sums";
    case Tier::kWarp:
      if (choices.WarpFits()) return "";
      return "tier 'warp' cannot hold a row of " + row() + " in the registers of a warp";
    case Tier::kBlock:
      if (choices.rows_of_blocks > 0) return "";
      return "tier 'block' cannot hold a row of " + row() + " in the registers of a block";
    case Tier::kBlockSmem:
      if (choices.of_block.blocks > 0) return "";
      return "tier 'block_smem' needs " + std::to_string(choices.of_block.bytes) +
             " bytes of shared memory for a row, and " + room();
    case Tier::kCluster:
      if (limits.cluster_blocks <= 1) {
        return "tier 'cluster' needs a GPU of compute capability 9.0 or later and code that was "
               "compiled for it; " +
               limits.name + " has no clusters here";
      }
      if (choices.of_cluster.blocks > 0) return "";
      return "tier 'cluster' needs " + std::to_string(choices.of_cluster.bytes) +
             " bytes of shared memory in each of " + std::to_string(limits.cluster_blocks) +
             " blocks for a row, and " + room();
    default:
      return "";
  }
}

void PlanIn(Tier tier, const RowProblem& problem, const TierChoices& choices,
            const DeviceLimits& limits, RowPlan& plan) {
  switch (tier) {
    case Tier::kWarp:
      plan.tier = Tier::kWarp;
      plan.warp_shape = choices.warp_shape;
      return choices.stages ? PlanWarpStaged(problem, limits, plan)
                            : PlanWarp(problem, limits, plan);
    case Tier::kBlock:
      return PlanBlock(problem, limits, plan);
    case Tier::kBlockSmem:
      return PlanSharedRow(problem, choices.of_block, limits, plan);
    case Tier::kCluster:
      return PlanSharedRow(problem, choices.of_cluster, limits, plan);
    default:
      if (IsReadInLeaves(problem.operation)) return PlanOneRead(problem, limits, plan);
      // A row that would fit is not kept: the caller forced this tier, so it shows the cost of two
      // reads.
      return PlanBlockUncached(problem, limits, choices.of_block.blocks > 0 ? 0 : INT32_MAX,
                               kUncachedThreads, plan);
  }
}

RowPlanResult PlanOnTier(const RowProblem& problem, const DeviceLimits& limits) {
  RowPlan plan;
  plan.pack = PackOf(problem.dtype);
  plan.offset = problem.offset;
  plan.on_packs = problem.offset == 0 && !problem.shifted;
  plan.aligned = problem.cols % plan.pack == 0 && plan.on_packs && problem.broadcast_aligned;
  const bool streams = problem.part != Part::kWhole || !Reduces(problem.operation);
  const int64_t most_packs = streams ? kMostPacksOfStreamedRow : kMostPacksOfRow;
  if (MaxPacksOfRow(problem.cols, plan.pack, problem.offset) > most_packs) {
    return {{},
            "cols=" + std::to_string(problem.cols) + " is about 2^" + (streams ? "30" : "31") +
                " packs of 16 bytes or more"};
  }
  if (streams) {
    PlanStream(problem, limits, plan);
    return {plan, ""};
  }

  const TierChoices choices = ChoicesOf(problem, plan, limits);
  Tier tier = problem.tier;
  plan.xla_by_default =
      tier == Tier::kAuto && choices.TooLong() && LeavesLongRows(problem.operation);
  const bool takes_staged = choices.stages && (tier == Tier::kAuto || tier == Tier::kWarp);
  if (problem.shifted && !takes_staged) {
    if (tier != Tier::kAuto && tier != Tier::kBlockUncached) {
      return {{},
              std::string("tier '").append(NameOf(tier)) +
                  "' needs inputs that begin where the result does within 16 bytes" +
                  kLeaveTierOut};
    }
    PlanGathered(problem, limits, plan);
    return {plan, ""};
  }
  if (tier == Tier::kAuto) tier = BestTier(problem, plan, choices, ArchOf(limits));
  if (const std::string why = WhyNot(tier, problem, choices, limits); !why.empty()) {
    return {{}, why + kLeaveTierOut};
  }
  PlanIn(tier, problem, choices, limits, plan);
  plan.two_sums = !problem.all_sums && HasTwoSums(problem.operation, plan.tier);
  return {plan, ""};
}

}  // namespace

RowPlanResult PlanRows(RowProblem problem, const DeviceLimits& limits) {
  // Arrays of one operand have one offset.
  problem.shifted &= InputsOf(problem.operation) > 1 || StoresElements(problem.operation);
  RowPlanResult planned = PlanOnTier(problem, limits);
  const bool is_misaligned = problem.offset != 0 || problem.shifted || !problem.broadcast_aligned;
  if (planned.error.empty() || problem.tier == Tier::kAuto || !is_misaligned) return planned;
  // Alignment is known only when the program runs. If the forced tier could handle these rows when
  // aligned, the user made no mistake, so another tier is chosen.
  RowProblem aligned = problem, anywhere = problem;
  aligned.offset = 0;
  aligned.shifted = false;
  aligned.broadcast_aligned = true;
  anywhere.tier = Tier::kAuto;
  return PlanOnTier(aligned, limits).error.empty() ? PlanOnTier(anywhere, limits) : planned;
}

}  // namespace jaxkernels
