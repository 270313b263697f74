#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchSoftmaxOf<DType::kFloat64>(const RowCall& call, const SoftmaxPlan& plan,
                                             cudaStream_t stream) {
  return LaunchOperation<double>(call, plan, stream);
}

}  // namespace jaxkernels
