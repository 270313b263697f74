// The policy of float32 flash attention: (problem, device limits) -> plan.
//
// Owns: which problems the kernels serve, the groups of the batch, the scratch and the grid. Must
// not know: CUDA, XLA, Python.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "core/device_limits.h"
#include "core/fields.h"

namespace jaxkernels {

// AttentionProblem is attention of float32 arrays (batch, queries, heads, depth), (batch, keys,
// key_heads, depth) and (batch, keys, key_heads, value_depth).
struct AttentionProblem {
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, key_heads = 0;
  int64_t depth = 0, value_depth = 0;
};

struct AttentionPlan {
  int padded_depth = 0;        // 32, 64 or 128
  int64_t groups = 1;          // of the batch, in sequence; the last may be smaller
  int64_t batch_of_group = 0;  // members
  int64_t tiles = 0;           // of 128 queries, of a group
  int heads_of_group = 1;      // heads whose tiles are computed together
  int sm_count = 0;            // of the device, and the most blocks of a launch
  int block_threads = 0;
  int smem_bytes = 0;         // dynamic shared memory of a block
  int64_t scratch_bytes = 0;  // split operands of a group

  static constexpr const char* kName = "AttentionKernelPlan";
  template <typename Self>
  static auto FieldsOf(Self& self) {
    return std::tuple(Field("padded_depth", self.padded_depth), Field("groups", self.groups),
                      Field("batch_of_group", self.batch_of_group), Field("tiles", self.tiles),
                      Field("heads_of_group", self.heads_of_group),
                      Field("sm_count", self.sm_count), Field("block_threads", self.block_threads),
                      Field("smem_bytes", self.smem_bytes),
                      Field("scratch_bytes", self.scratch_bytes));
  }
};

struct AttentionPlanResult {
  AttentionPlan plan;
  std::string error;
};

AttentionPlanResult PlanAttention(const AttentionProblem& problem, const DeviceLimits& limits,
                                  bool backward);

}  // namespace jaxkernels
