#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchRowsOf<DType::kFloat16>(const RowCall& call, const RowPlan& plan,
                                          cudaStream_t stream) {
  return LaunchOperation<__half>(call, plan, stream);
}

}  // namespace jaxkernels
