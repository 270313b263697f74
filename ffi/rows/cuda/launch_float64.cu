#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchRowsOf<DType::kFloat64>(const RowCall& call, const RowPlan& plan,
                                          cudaStream_t stream) {
  return LaunchOperation<double>(call, plan, stream);
}

}  // namespace jaxkernels
