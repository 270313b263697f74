// Launches the pipelined kernel: plan -> template instantiation.
//
// Owns: the table of kernels. Must not know: policy.
#include <utility>

#include "core/launch_kernel.h"
#include "sgemm/launch.h"
#include "sgemm/pipelined/kernel.cuh"
#include "sgemm/pipelined/tensor_map.h"

namespace jaxkernels {
namespace {

using PipelinedKernel = void (*)(CUtensorMap, CUtensorMap, SgemmArgs, PipelinedGrid);

template <Engine kEngine, int kTile, bool kMarked = false>
PipelinedKernel FindKernel(bool a_k_major, bool b_k_major) {
  if (a_k_major) {
    return b_k_major ? PipelinedSgemm<kTile, kEngine, true, true, kMarked>
                     : PipelinedSgemm<kTile, kEngine, true, false, kMarked>;
  }
  return b_k_major ? PipelinedSgemm<kTile, kEngine, false, true, kMarked>
                   : PipelinedSgemm<kTile, kEngine, false, false, kMarked>;
}

// FindPipelined has one entry for each tile of the table, and one for marked tiles.
template <Engine kEngine, int... kTiles>
PipelinedKernel FindPipelined(const SgemmPlan& plan, const SgemmArgs& args,
                              std::integer_sequence<int, kTiles...>) {
  static constexpr PipelinedKernel (*kFind[])(bool, bool) = {FindKernel<kEngine, kTiles>...};
  const auto find =
      args.selected.marks != nullptr ? FindKernel<kEngine, kRepairTile, true> : kFind[plan.tile];
  return find(args.a_k_major, args.b_k_major);
}

// MapOperands encodes the tensor maps of A and B, which only kTma reads.
cudaError_t MapOperands(const SgemmPlan& plan, const SgemmArgs& args, CUtensorMap* map_a,
                        CUtensorMap* map_b) {
  const TmaOperand a{args.a,          args.a_k_major, args.m,       args.k,
                     args.matrices_a, args.pitch_a,   plan.block_m, plan.block_k};
  const TmaOperand b{args.b,          args.b_k_major, args.n,       args.k,
                     args.matrices_b, args.pitch_b,   plan.block_n, plan.block_k};
  const cudaError_t error = MapOperand(a, map_a);
  return error == cudaSuccess ? MapOperand(b, map_b) : error;
}

}  // namespace

cudaError_t LaunchPipelined(const SgemmPlan& plan, const SgemmArgs& args, int part,
                            cudaStream_t stream) {
  CUtensorMap map_a{}, map_b{};
  const bool is_tma = plan.engine == Engine::kTma;
  if (is_tma) {
    const cudaError_t error = MapOperands(plan, args, &map_a, &map_b);
    if (error != cudaSuccess) return error;
  }
  const PipelinedKernel kernel =
      is_tma ? FindPipelined<Engine::kTma>(plan, args, PipelinedTileIndices{})
             : FindPipelined<Engine::kFloats>(plan, args, PipelinedTileIndices{});
  const auto narrow = [](int64_t value) { return static_cast<unsigned>(value); };  // < 2^31
  const int64_t tiles = plan.tiles_m * plan.tiles_n * plan.split_k;
  const PipelinedGrid grid{narrow(plan.tiles_m),  narrow(plan.tiles_n),
                           narrow(plan.split_k),  narrow(plan.grid_blocks / tiles),
                           narrow(part),          plan.k_per_split,
                           narrow(plan.sm_count), narrow(plan.stagger_cycles)};
  return LaunchKernel(kernel, {plan.grid_blocks, plan.block_threads, plan.smem_bytes}, stream,
                      map_a, map_b, args, grid);
}

}  // namespace jaxkernels
