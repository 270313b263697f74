#include "rows/cuda/launch.h"

#include "core/launch_kernel.h"

namespace jaxkernels {

cudaError_t LaunchRows(const RowCall& call, const RowPlan& plan, cudaStream_t stream) {
  switch (call.dtype) {
    case DType::kFloat32:
      return LaunchRowsOf<DType::kFloat32>(call, plan, stream);
    case DType::kBFloat16:
      return LaunchRowsOf<DType::kBFloat16>(call, plan, stream);
    case DType::kFloat16:
      return LaunchRowsOf<DType::kFloat16>(call, plan, stream);
    case DType::kFloat64:
      return LaunchRowsOf<DType::kFloat64>(call, plan, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t StartKernel(const void* function, const RowPlan& plan, void** kernel_args,
                        cudaStream_t stream) {
  if (function == nullptr) return cudaErrorInvalidDeviceFunction;  // it was not compiled
  const LaunchShape shape{.blocks = plan.grid_blocks,
                          .threads = plan.block_threads,
                          .smem_bytes = plan.smem_bytes,
                          .cluster_blocks = plan.cluster_blocks,
                          .prefers_smem = plan.smem_bytes > 0};
  return LaunchFunction(function, shape, stream, kernel_args);
}

}  // namespace jaxkernels
