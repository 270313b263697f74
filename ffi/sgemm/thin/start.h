// Code that the launchers of thin products share.
//
// Owns: how a plan launches a kernel. Must not know: kernels.
#ifndef JAXKERNELS_SGEMM_THIN_START_H_
#define JAXKERNELS_SGEMM_THIN_START_H_

#include <cuda_runtime_api.h>

#include "core/function_attributes.h"
#include "sgemm/args.h"
#include "sgemm/plan.h"

namespace jaxkernels {

// LaunchShallow launches products of small k. Its own source file compiles in parallel with
// launch.cu.
cudaError_t LaunchShallow(const SgemmPlan& plan, const SgemmArgs& product, bool a_along_k,
                          bool b_along_k, cudaStream_t stream);

inline cudaError_t StartThin(const SgemmPlan& plan, const void* kernel, void* args,
                             cudaStream_t stream) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(plan.cluster_blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid_blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.block_threads));
  config.dynamicSmemBytes = plan.smem_bytes;
  config.stream = stream;
  if (plan.cluster_blocks > 1) {
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  if (plan.cluster_blocks > kPortableClusterBlocks) {
    if (const cudaError_t error = AllowLargeClusters(kernel); error != cudaSuccess) return error;
  }
  void* arguments[] = {args};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_START_H_
