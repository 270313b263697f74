// Launches the pipelined kernel of one engine: plan -> template instantiation.
//
// Owns: the table of kernels. Each engine includes it in a source file of its own, so that both
// compile in parallel. Must not know: policy.
#ifndef JAXKERNELS_SGEMM_PIPELINED_LAUNCH_CUH_
#define JAXKERNELS_SGEMM_PIPELINED_LAUNCH_CUH_

#include <utility>

#include "core/function_attributes.h"
#include "sgemm/launch.h"
#include "sgemm/pipelined/kernel.cuh"

namespace jaxkernels {

using PipelinedKernel = void (*)(CUtensorMap, CUtensorMap, SgemmArgs, PipelinedGrid);

template <Engine kEngine, int kTile, bool kMarked = false>
PipelinedKernel FindKernel(bool a_along_k, bool b_along_k) {
  if (a_along_k) {
    return b_along_k ? PipelinedSgemm<kTile, kEngine, true, true, kMarked>
                     : PipelinedSgemm<kTile, kEngine, true, false, kMarked>;
  }
  return b_along_k ? PipelinedSgemm<kTile, kEngine, false, true, kMarked>
                   : PipelinedSgemm<kTile, kEngine, false, false, kMarked>;
}

// FindPipelined has one entry for each tile of the table.
template <Engine kEngine, int... kTiles>
PipelinedKernel FindPipelined(int tile, bool a_along_k, bool b_along_k,
                              std::integer_sequence<int, kTiles...>) {
  static constexpr PipelinedKernel (*kFind[])(bool, bool) = {FindKernel<kEngine, kTiles>...};
  return kFind[tile](a_along_k, b_along_k);
}

// `part` is the index of the launch if several share k. Only kTma reads the maps.
template <Engine kEngine>
cudaError_t StartPipelined(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                           bool b_along_k, int part, CUtensorMap map_a, CUtensorMap map_b,
                           cudaStream_t stream) {
  PipelinedKernel kernel =
      args.made.marks != nullptr
          ? FindKernel<kEngine, kRepairTile, true>(a_along_k, b_along_k)
          : FindPipelined<kEngine>(plan.tile, a_along_k, b_along_k, PipelinedTileIndices{});
  SgemmArgs kernel_args = args;
  const auto narrow = [](int64_t value) { return static_cast<unsigned>(value); };  // < 2^31
  const int64_t tiles = plan.tiles_m * plan.tiles_n * plan.split_k;
  PipelinedGrid grid{narrow(plan.tiles_m),  narrow(plan.tiles_n),
                     narrow(plan.split_k),  narrow(plan.grid_blocks / tiles),
                     narrow(part),          plan.k_per_split,
                     narrow(plan.sm_count), narrow(plan.stagger_cycles)};
  const void* function = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t error = AllowAllSharedMemory(function); error != cudaSuccess) return error;
  void* arguments[] = {&map_a, &map_b, &kernel_args, &grid};
  return cudaLaunchKernel(function, dim3(narrow(plan.grid_blocks)), dim3(plan.block_threads),
                          arguments, plan.smem_bytes, stream);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_PIPELINED_LAUNCH_CUH_
