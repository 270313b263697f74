#include "softmax/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchSoftmaxOf<DType::kFloat32>(Operation operation, const SoftmaxPlan& plan,
                                             const SoftmaxArrays& arrays, cudaStream_t stream) {
  return LaunchOperation<float>(operation, plan, arrays, stream);
}

}  // namespace jaxkernels
