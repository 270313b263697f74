// Launches CUDA kernels.
//
// Owns: the cluster attribute, and the function attributes that a launch needs on its device:
// dynamic shared memory, the carveout, clusters of more than 8 blocks. All host threads of a
// process share these. Each is set once per device and function, to a value that does not depend on
// the launch, so that no thread undoes another's setting. Must not know: plans.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace jaxkernels {

struct LaunchShape {
  int64_t blocks;
  int threads;
  int smem_bytes = 0;  // dynamic
  int cluster_blocks = 1;
  bool prefers_smem = false;  // carveout: maximum shared memory, minimum L1
};

// Launches `function` on the current device. `blocks` must be a positive multiple of
// `cluster_blocks`.
cudaError_t LaunchFunction(const void* function, const LaunchShape& shape, cudaStream_t stream,
                           void** arguments);

template <typename... Args>
cudaError_t LaunchKernel(void (*kernel)(Args...), const LaunchShape& shape, cudaStream_t stream,
                         std::type_identity_t<Args>... args) {
  void* arguments[sizeof...(Args) + 1] = {&args...};
  return LaunchFunction(reinterpret_cast<const void*>(kernel), shape, stream, arguments);
}

}  // namespace jaxkernels
