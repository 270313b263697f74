#include "attention/plan.h"

#include <algorithm>

#include "attention/layout.h"
#include "attention/tiles.h"
#include "core/ceil_div.h"

namespace jaxkernels {
namespace {

// If the scratch of the whole batch exceeds kMaxScratchBytes, the batch is processed in groups of
// at most kScratchBytesOfGroup (one member at least), so that a group's scratch may stay in the L2.
// These sizes were not measured.
constexpr int64_t kMaxScratchBytes = int64_t{128} << 20;
constexpr int64_t kScratchBytesOfGroup = int64_t{64} << 20;

// Keys and values of the heads whose tiles are computed together. Half of an H100's L2;
// other sizes were not measured.
constexpr int64_t kBytesOfHeads = int64_t{24} << 20;

std::string WhyNone(const AttentionProblem& p, const DeviceLimits& limits) {
  if (!limits.has_wgmma) {
    return "float32 flash attention needs Hopper's tensor cores and code for them";
  }
  if (std::min({p.batch, p.queries, p.keys, p.heads, p.key_heads, p.depth, p.value_depth}) < 1) {
    return "there is nothing to compute";
  }
  if (p.heads % p.key_heads != 0) return "heads of queries are no multiple of those of keys";
  if (std::max(p.depth, p.value_depth) > kMaxDepth) {
    return "float32 flash attention takes depths up to " + std::to_string(kMaxDepth);
  }
  const bool is_large =
      std::max({p.batch, p.queries, p.keys, p.heads}) >= kOpenBand ||
      p.batch * p.heads >= kOpenBand ||
      p.batch * p.heads * CeilDiv(std::max(p.queries, p.keys), kBlockRows) >= kOpenBand;
  return is_large ? "float32 flash attention takes fewer than 2^30 tiles" : "";
}

}  // namespace

AttentionPlanResult PlanAttention(const AttentionProblem& problem, const DeviceLimits& limits,
                                  bool backward) {
  const std::string why = WhyNone(problem, limits);
  if (!why.empty()) return {{}, why};
  AttentionPlan plan;
  plan.padded_depth = PaddedDepth(std::max(problem.depth, problem.value_depth));
  const auto scratch_of = [&](int64_t batch) {
    return MakeAttentionScratch(batch, problem.queries, problem.keys, problem.heads,
                                problem.key_heads, plan.padded_depth, backward)
        .bytes;
  };
  const int64_t most = std::max<int64_t>(kScratchBytesOfGroup / scratch_of(1), 1);
  plan.groups = scratch_of(problem.batch) > kMaxScratchBytes ? CeilDiv(problem.batch, most) : 1;
  plan.batch_of_group = CeilDiv(problem.batch, plan.groups);
  plan.groups = CeilDiv(problem.batch, plan.batch_of_group);
  plan.scratch_bytes = scratch_of(plan.batch_of_group);
  const int64_t heads = plan.batch_of_group * problem.heads;
  plan.tiles = heads * CeilDiv(problem.queries, kBlockRows);
  const int64_t bytes_of_head = CeilDiv(problem.keys, kBlockRows) *
                                BytesOfBlock(plan.padded_depth) * 2 * problem.key_heads /
                                problem.heads;
  plan.heads_of_group = static_cast<int>(
      std::clamp<int64_t>(kBytesOfHeads / std::max<int64_t>(bytes_of_head, 1), 1, heads));
  plan.sm_count = limits.sm_count;
  plan.block_threads = kAttentionThreads;
  plan.smem_bytes = AttentionSmemBytes(plan.padded_depth);
  return {plan, ""};
}

}  // namespace jaxkernels
