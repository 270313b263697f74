#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchSoftmaxOf<DType::kFloat16>(const RowCall& call, const SoftmaxPlan& plan,
                                             cudaStream_t stream) {
  return LaunchOperation<__half>(call, plan, stream);
}

}  // namespace jaxkernels
