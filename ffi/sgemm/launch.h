// Launches the kernels of a plan.
//
// Owns: the boundary between host code and CUDA code. Calls only enqueue work: they never allocate
// or wait, so that CUDA graphs can capture them.
#pragma once

#include <cuda_runtime_api.h>

#include "sgemm/args.h"
#include "sgemm/plan.h"

namespace jaxkernels {

// LaunchSgemm computes out = alpha * op(A) op(B) + beta * C on any rung. It reads `repairs` only
// for `tensor` without split-k.
cudaError_t LaunchSgemm(const SgemmPlan& plan, const SgemmPlan& repairs, const SgemmArgs& args,
                        cudaStream_t stream);

cudaError_t LaunchRung(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream);
// `part` is the index of the launch if several launches share k.
cudaError_t LaunchPipelined(const SgemmPlan& plan, const SgemmArgs& args, int part,
                            cudaStream_t stream);
// LaunchThin writes the result, or with split-k the sums of the splits.
cudaError_t LaunchThin(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream);

// LaunchTensor computes all tiles but the flagged ones, and returns those in `flagged`. With
// split-k it computes all tiles.
cudaError_t LaunchTensor(const SgemmPlan& plan, const SgemmArgs& args, TileSelection* flagged,
                         cudaStream_t stream);

}  // namespace jaxkernels
