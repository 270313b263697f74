#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchSoftmaxOf<DType::kFloat32>(const RowCall& call, const SoftmaxPlan& plan,
                                             cudaStream_t stream) {
  return LaunchOperation<float>(call, plan, stream);
}

}  // namespace jaxkernels
