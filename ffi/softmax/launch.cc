#include "softmax/launch.h"

namespace jaxkernels {

cudaError_t LaunchSoftmax(DType dtype, Operation operation, const SoftmaxPlan& plan,
                          const SoftmaxArrays& arrays, cudaStream_t stream) {
  switch (dtype) {
    case DType::kFloat32:
      return LaunchSoftmaxOf<DType::kFloat32>(operation, plan, arrays, stream);
    case DType::kBFloat16:
      return LaunchSoftmaxOf<DType::kBFloat16>(operation, plan, arrays, stream);
    case DType::kFloat16:
      return LaunchSoftmaxOf<DType::kFloat16>(operation, plan, arrays, stream);
    case DType::kFloat64:
      return LaunchSoftmaxOf<DType::kFloat64>(operation, plan, arrays, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jaxkernels
