// A plan as text, and the names of tiers. No rules: those are in plan.cc.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "softmax/plan.h"

namespace jaxkernels {
namespace {

constexpr std::string_view kTierNames[] = {"auto",    "warp",           "block", "block_smem",
                                           "cluster", "block_uncached", "stream"};

}  // namespace

const char* TierName(Tier tier) { return kTierNames[static_cast<int>(tier)].data(); }

bool ParseTier(std::string_view name, Tier* tier) {
  const auto* const found = std::find(std::begin(kTierNames), std::end(kTierNames), name);
  if (found == std::end(kTierNames)) return false;
  *tier = static_cast<Tier>(found - std::begin(kTierNames));
  return true;
}

std::string ToString(const SoftmaxPlan& plan) {
  const auto field = [](const char* name, int64_t value) {
    return std::string(", ") + name + "=" + std::to_string(value);
  };
  const auto flag = [](const char* name, bool value) {
    return std::string(", ") + name + (value ? "=True" : "=False");
  };
  const std::string part =
      plan.part == Part::kWhole
          ? ""
          : "part='" + std::string(kPartNames[static_cast<int>(plan.part)]) + "', ";
  return "SoftmaxPlan(" + part + "tier='" + std::string(TierName(plan.tier)) + "'" +
         field("pack", plan.pack) + flag("aligned", plan.aligned) +
         flag("on_packs", plan.on_packs) + field("offset", plan.offset) +
         flag("staged", plan.staged) + field("lanes", plan.lanes) +
         field("packs_per_lane", plan.packs_per_lane) + field("kept_packs", plan.kept_packs) +
         field("rows_per_access", plan.rows_per_access) +
         field("cluster_blocks", plan.cluster_blocks) + field("block_threads", plan.block_threads) +
         field("grid_blocks", plan.grid_blocks) + field("workers", plan.batches.workers) +
         field("rounds", plan.batches.rounds) + flag("halves", plan.batches.halves) +
         field("smem_bytes", plan.smem_bytes) + field("blocks_per_sm", plan.blocks_per_sm) + ")";
}

}  // namespace jaxkernels
