// LaunchKernel launches a CUDA kernel with typed arguments.
//
// Owns: the cluster attribute, and the opt-ins that a launch needs on its device: dynamic shared
// memory, and clusters of more than 8 blocks. Must not know: plans.
#ifndef JAXKERNELS_CORE_LAUNCH_KERNEL_H_
#define JAXKERNELS_CORE_LAUNCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/device_limits.h"
#include "core/function_attributes.h"

namespace jaxkernels {

struct LaunchShape {
  int64_t blocks;
  int threads;
  int smem_bytes = 0;  // dynamic
  int cluster_blocks = 1;
};

// Launches on the current device. `blocks` must be a positive multiple of `cluster_blocks`.
template <typename... Args>
cudaError_t LaunchKernel(void (*kernel)(Args...), const LaunchShape& shape, cudaStream_t stream,
                         std::type_identity_t<Args>... args) {
  if (shape.blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const auto function = reinterpret_cast<const void*>(kernel);
  cudaError_t error = cudaSuccess;
  if (shape.smem_bytes > 0) error = AllowAllSharedMemory(function);
  if (error == cudaSuccess && shape.cluster_blocks > kPortableClusterBlocks) {
    error = AllowLargeClusters(function);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster_blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.smem_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = shape.cluster_blocks > 1;
  void* arguments[sizeof...(Args) + 1] = {&args...};
  return cudaLaunchKernelExC(&config, function, arguments);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_LAUNCH_KERNEL_H_
