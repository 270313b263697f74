// Which rung of the ladder makes a product.
//
// Owns: the rungs by name, and when `thin` and `tensor` can serve and pay. Must not know: CUDA,
// plans.
#ifndef JAXKERNELS_SGEMM_RUNG_CHOICE_H_
#define JAXKERNELS_SGEMM_RUNG_CHOICE_H_

#include <string_view>

#include "core/device_limits.h"
#include "sgemm/problem.h"
#include "sgemm/tensor/layout.h"

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
// short and lines are many on both sides. `tensor` gives way to `pipelined` where it cannot serve:
// it needs a GPU of compute capability 9.0, code with its instructions, 32 to 65536 of k, and
// scratch within bounds. Whether it pays does not depend on the batch, unless the problem says
// for_batch; whether its scratch is within bounds does.
Algorithm RungOf(const SgemmProblem& problem, const DeviceLimits& limits, Algorithm asked);

// The rung `tensor` compensates sums of more k than this where a member has no more tiles than the
// device has SMs: other kernels would split k there, and err less for it. For many tiles it would
// cost a seventh of the speed.
// H200, uniform [0, 1), largest error, plain and compensated by force (2026-11):
// 1024^3 4.8e-7, 2.9e-7
// 4096^3 7.5e-7, 2.7e-7
// H200, all launches, us (2026-11): 4096^3 757, 860
inline constexpr int64_t kMaxDepthPlain = 1024;
bool IsCompensated(const SgemmProblem& problem, const DeviceLimits& limits);

// Launches of the FFMA kernel that makes tiles again, each of which sums a part of k.
int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits);

// What the rung `tensor` keeps in its scratch.
TensorScratch ScratchOf(const SgemmProblem& problem);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNG_CHOICE_H_
