// Which rung of the ladder makes a product.
//
// Owns: the rungs by name, and when `thin` and `tensor` can serve and pay. Must not know: CUDA,
// plans.
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

// The rung that runs where `asked` is asked for. `thin` gives way to `pipelined` where k is not
// short and lines are many on both sides, `tensor` where it cannot serve (tensor/choice.h). Whether
// it pays does not depend on the batch, unless the problem says for_batch; whether its scratch is
// within bounds does. split_k: as it was when the program was lowered, or 0.
Algorithm RungOf(const SgemmProblem& problem, const DeviceLimits& limits, Algorithm asked,
                 int split_k = 0);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNG_CHOICE_H_
