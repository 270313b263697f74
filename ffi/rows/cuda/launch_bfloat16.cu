#include "rows/cuda/launch.cuh"

namespace jaxkernels {

template <>
cudaError_t LaunchRowsOf<DType::kBFloat16>(const RowCall& call, const RowPlan& plan,
                                           cudaStream_t stream) {
  return LaunchOperation<__nv_bfloat16>(call, plan, stream);
}

}  // namespace jaxkernels
