#include "sgemm/pipelined/launch.cuh"
#include "sgemm/pipelined/tensor_map.h"

namespace jaxkernels {
namespace {

// Whether the kernels that are loaded were compiled for a GPU that has the accelerator: code for an
// older one runs on a newer one too, but without it.
cudaError_t FindTmaCode(bool* has) {
  const auto kernel = PipelinedSgemm<kLargeTile, Engine::kTma, true, false>;
  int version = 0;
  const cudaError_t error = FindCodeVersion(reinterpret_cast<const void*>(kernel), &version);
  *has = version >= 90;
  return error;
}

}  // namespace

cudaError_t LaunchPipelined(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                            bool b_along_k, int part, cudaStream_t stream) {
  if (plan.engine == Engine::kFloats) {
    return LaunchPipelinedFloats(plan, args, a_along_k, b_along_k, part, stream);
  }
  const PipelinedTile& tile = kPipelinedTiles[plan.tile];
  const int block_k = StagesOf(tile, Engine::kTma, a_along_k, b_along_k).block_k;
  const TmaOperand a{args.a,         a_along_k,    args.m,       args.k,
                     args.members_a, args.pitch_a, tile.block_m, block_k};
  const TmaOperand b{args.b,         b_along_k,    args.n,       args.k,
                     args.members_b, args.pitch_b, tile.block_n, block_k};
  // What a plan cannot see: where the operands begin, and what the code was compiled for. (A map
  // that begins before an operand, with lines longer than they are apart, is an illegal
  // instruction.)
  bool has_code = false;
  if (const cudaError_t error = FindTmaCode(&has_code); error != cudaSuccess) return error;
  if (!CanMap(a) || !CanMap(b) || !has_code) {
    return LaunchPipelinedFloats(plan, args, a_along_k, b_along_k, part, stream);
  }
  CUtensorMap map_a, map_b;
  if (const cudaError_t error = MapOperand(a, &map_a); error != cudaSuccess) return error;
  if (const cudaError_t error = MapOperand(b, &map_b); error != cudaSuccess) return error;
  return StartPipelined<Engine::kTma>(plan, args, a_along_k, b_along_k, part, map_a, map_b, stream);
}

}  // namespace jaxkernels
