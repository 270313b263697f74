#include "softmax/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchSoftmaxOf<DType::kBFloat16>(Operation operation, const SoftmaxPlan& plan,
                                              const SoftmaxArrays& arrays, cudaStream_t stream) {
  return LaunchOperation<__nv_bfloat16>(operation, plan, arrays, stream);
}

}  // namespace jaxkernels
