#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchRowsOf<DType::kFloat32>(const RowCall& call, const RowPlan& plan,
                                          cudaStream_t stream) {
  return LaunchOperation<float>(call, plan, stream);
}

}  // namespace jaxkernels
