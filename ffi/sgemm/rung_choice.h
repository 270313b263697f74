// Chooses the rung of the ladder for a product.
//
// Owns: the names of the rungs, and the rules when `thin` and `tensor` can run and are faster. Must
// not know: CUDA, plans.
#ifndef JAXKERNELS_SGEMM_RUNG_CHOICE_H_
#define JAXKERNELS_SGEMM_RUNG_CHOICE_H_

#include <string_view>

#include "core/device_limits.h"
#include "sgemm/problem.h"

namespace jaxkernels {

// The rungs of the ladder. kAuto lets the policy choose.
enum class Algorithm {
  kAuto,
  kNaive,
  kBlockTile,
  kThreadTile,
  kWarpTile,
  kSplitTile,
  kPipelined,
  kThin,
  kTensor,
};

inline constexpr std::string_view kAlgorithmNames[] = {
    "auto",       "naive",     "block_tile", "thread_tile", "warp_tile",
    "split_tile", "pipelined", "thin",       "tensor",
};
constexpr const auto& NamesOf(Algorithm) { return kAlgorithmNames; }

// RungOf returns the rung that runs if `asked` is requested. `thin` falls back to `pipelined` if k
// is not small and both sides are long. `tensor` falls back if it cannot run (tensor/plan.h). The
// batch decides whether the scratch of `tensor` fits, but not whether `tensor` is faster, unless
// the problem sets for_batch. split_k: its value when the program was lowered, or 0.
Algorithm RungOf(const SgemmProblem& problem, const DeviceLimits& limits, Algorithm asked,
                 int split_k = 0);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNG_CHOICE_H_
