#include "rows/cuda/launch.h"

#include "core/function_attributes.h"

namespace jaxkernels {
namespace {

cudaError_t PrepareFunction(const void* function, const SoftmaxPlan& plan) {
  cudaError_t error = cudaSuccess;
  if (plan.smem_bytes > 0) error = AllowAllSharedMemory(function);
  if (plan.smem_bytes > 0 && error == cudaSuccess) error = PreferSharedMemory(function);
  if (plan.cluster_blocks > kPortableClusterBlocks && error == cudaSuccess) {
    error = AllowLargeClusters(function);
  }
  return error;
}

}  // namespace

cudaError_t LaunchSoftmax(const RowCall& call, const SoftmaxPlan& plan, cudaStream_t stream) {
  switch (call.dtype) {
    case DType::kFloat32:
      return LaunchSoftmaxOf<DType::kFloat32>(call, plan, stream);
    case DType::kBFloat16:
      return LaunchSoftmaxOf<DType::kBFloat16>(call, plan, stream);
    case DType::kFloat16:
      return LaunchSoftmaxOf<DType::kFloat16>(call, plan, stream);
    case DType::kFloat64:
      return LaunchSoftmaxOf<DType::kFloat64>(call, plan, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t StartKernel(const void* function, const SoftmaxPlan& plan, void** kernel_args,
                        cudaStream_t stream) {
  if (const cudaError_t error = PrepareFunction(function, plan); error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.cluster_blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid_blocks));
  config.blockDim = dim3(plan.block_threads);
  config.dynamicSmemBytes = plan.smem_bytes;
  config.stream = stream;
  if (plan.cluster_blocks > 1) {
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelExC(&config, function, kernel_args);
}

}  // namespace jaxkernels
