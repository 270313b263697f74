// A plan as text, and the names of what it chooses. No rules: those are in plan.cc.
#include "sgemm/plan.h"

namespace jaxkernels {

const char* EngineName(Engine engine) { return engine == Engine::kTma ? "tma" : "floats"; }

const char* AlgorithmName(Algorithm algorithm) {
  return kAlgorithmNames[static_cast<int>(algorithm)].data();
}

bool ParseAlgorithm(std::string_view name, Algorithm* algorithm) {
  for (int i = 0; i < kAlgorithmCount; ++i) {
    if (name != kAlgorithmNames[i]) continue;
    *algorithm = static_cast<Algorithm>(i);
    return true;
  }
  return false;
}

std::string ToString(const SgemmPlan& plan) {
  std::string text = "SgemmPlan(algorithm='" + std::string(AlgorithmName(plan.algorithm)) + "'";
  if (plan.algorithm == Algorithm::kPipelined) {
    text += ", engine='" + std::string(EngineName(plan.engine)) + "'";
  }
  const auto add = [&](const char* name, int64_t value) {
    text += ", " + std::string(name) + "=" + std::to_string(value);
  };
  add("block_m", plan.block_m);
  add("block_n", plan.block_n);
  add("block_k", plan.block_k);
  add("thread_m", plan.thread_m);
  add("thread_n", plan.thread_n);
  add("block_threads", plan.block_threads);
  add("stages", plan.stages);
  add("slices", plan.slices);
  add("split_k", plan.split_k);
  add("launches", plan.launches);
  add("k_per_split", plan.k_per_split);
  add("tiles_m", plan.tiles_m);
  add("tiles_n", plan.tiles_n);
  add("grid_blocks", plan.grid_blocks);
  add("sm_count", plan.sm_count);
  add("stagger_cycles", plan.stagger_cycles);
  add("smem_bytes", plan.smem_bytes);
  add("blocks_per_sm", plan.blocks_per_sm);
  add("partial_elements", plan.partial_elements);
  add("pad_a", plan.pad_a);
  add("pad_b", plan.pad_b);
  return text + ")";
}

}  // namespace jaxkernels
