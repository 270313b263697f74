#include "sgemm/pipelined/launch.cuh"
#include "sgemm/pipelined/tensor_map.h"

namespace jaxkernels {
cudaError_t LaunchPipelinedTma(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                               bool b_along_k, int part, cudaStream_t stream) {
  const TmaOperand a{args.a,         a_along_k,    args.m,       args.k,
                     args.members_a, args.pitch_a, plan.block_m, plan.block_k};
  const TmaOperand b{args.b,         b_along_k,    args.n,       args.k,
                     args.members_b, args.pitch_b, plan.block_n, plan.block_k};
  CUtensorMap map_a, map_b;
  if (const cudaError_t error = MapOperand(a, &map_a); error != cudaSuccess) return error;
  if (const cudaError_t error = MapOperand(b, &map_b); error != cudaSuccess) return error;
  return StartPipelined<Engine::kTma>(plan, args, a_along_k, b_along_k, part, map_a, map_b, stream);
}

}  // namespace jaxkernels
