#include "core/launch_kernel.h"

#include <limits>
#include <mutex>
#include <set>
#include <tuple>

#include "core/device_limits.h"

namespace jaxkernels {
namespace {

// Finds the most dynamic shared memory of a block: 48 KiB is only the default.
cudaError_t FindMostSharedMemory(const void* function, int device, int* bytes) {
  cudaError_t error =
      cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaFuncAttributes attributes;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, function);
  if (error == cudaSuccess) *bytes -= static_cast<int>(attributes.sharedSizeBytes);
  return error;
}

// Sets an attribute of a function to its one value, unless it is set on the current device. Later
// calls cost a look-up. Failures are returned and not remembered.
cudaError_t SetOnce(cudaFuncAttribute attribute, const void* function) {
  static std::mutex mutex;
  // Never destroyed: threads may launch while the process exits.
  static auto* const done = new std::set<std::tuple<int, const void*, cudaFuncAttribute>>;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  if (done->count({device, function, attribute}) > 0) return cudaSuccess;
  int value = 1;  // that of cudaFuncAttributeNonPortableClusterSizeAllowed
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    error = FindMostSharedMemory(function, device, &value);
  } else if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    value = cudaSharedmemCarveoutMaxShared;
  }
  if (error == cudaSuccess) error = cudaFuncSetAttribute(function, attribute, value);
  if (error == cudaSuccess) done->insert({device, function, attribute});
  return error;
}

}  // namespace

cudaError_t LaunchFunction(const void* function, const LaunchShape& shape, cudaStream_t stream,
                           void** arguments) {
  if (shape.blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const auto set_if = [&](bool needed, cudaFuncAttribute attribute) {
    return needed ? SetOnce(attribute, function) : cudaSuccess;
  };
  cudaError_t error = set_if(shape.smem_bytes > 0, cudaFuncAttributeMaxDynamicSharedMemorySize);
  if (error == cudaSuccess) {
    error = set_if(shape.prefers_smem, cudaFuncAttributePreferredSharedMemoryCarveout);
  }
  if (error == cudaSuccess) {
    error = set_if(shape.cluster_blocks > kPortableClusterBlocks,
                   cudaFuncAttributeNonPortableClusterSizeAllowed);
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
  return cudaLaunchKernelExC(&config, function, arguments);
}

}  // namespace jaxkernels
