// Starts the kernels of a plan.
//
// Owns: the line between host code and CUDA code. Every call only enqueues: nothing allocates or
// waits, so that all of it can be captured in a CUDA graph.
#ifndef JAXKERNELS_SGEMM_LAUNCH_H_
#define JAXKERNELS_SGEMM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "sgemm/args.h"
#include "sgemm/plan.h"

namespace jaxkernels {

// out = alpha * op(A) op(B) + beta * C by any rung. `repairs` is read where that is `tensor`, and
// k is not split.
cudaError_t LaunchSgemm(const SgemmPlan& plan, const SgemmPlan& repairs, const SgemmArgs& args,
                        bool trans_a, bool trans_b, cudaStream_t stream);

// Its parts. "Along k": elements of one row of op(A), or of one column of op(B), are neighbours.
cudaError_t LaunchRung(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k, bool b_along_k,
                       cudaStream_t stream);
// `part`: which part of k, where several launches share it.
cudaError_t LaunchPipelinedTma(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                               bool b_along_k, int part, cudaStream_t stream);
cudaError_t LaunchPipelinedFloats(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                                  bool b_along_k, int part, cudaStream_t stream);
// One split of k, or all of k.
cudaError_t LaunchThin(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k, bool b_along_k,
                       cudaStream_t stream);

// All but marked tiles, whose marks are written to `made`; where k is split all of them.
cudaError_t LaunchTensor(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                         bool b_along_k, TileMarks* made, cudaStream_t stream);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_LAUNCH_H_
