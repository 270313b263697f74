#include "sgemm/pipelined/launch.cuh"

namespace jaxkernels {

cudaError_t LaunchPipelinedFloats(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                                  bool b_along_k, int part, cudaStream_t stream) {
  return StartPipelined<Engine::kFloats>(plan, args, a_along_k, b_along_k, part, {}, {}, stream);
}

}  // namespace jaxkernels
