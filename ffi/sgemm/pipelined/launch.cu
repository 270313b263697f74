// Launches the pipelined kernel: plan -> template instantiation.
//
// Owns: the table of kernels, and the tensor maps that TmaStages (stages.cuh) expects. Must not
// know: policy.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/launch_kernel.h"
#include "sgemm/launch.h"
#include "sgemm/pipelined/kernel.cuh"

namespace jaxkernels {
namespace {

using PipelinedKernel = void (*)(CUtensorMap, CUtensorMap, SgemmArgs, PipelinedGrid);

template <Engine kEngine, int kTile, bool kSelected = false>
PipelinedKernel FindKernel(bool a_k_major, bool b_k_major) {
  if (a_k_major) {
    return b_k_major ? PipelinedSgemm<kTile, kEngine, true, true, kSelected>
                     : PipelinedSgemm<kTile, kEngine, true, false, kSelected>;
  }
  return b_k_major ? PipelinedSgemm<kTile, kEngine, false, true, kSelected>
                   : PipelinedSgemm<kTile, kEngine, false, false, kSelected>;
}

template <Engine kEngine, int... kTiles>
PipelinedKernel FindPipelined(const SgemmPlan& plan, const SgemmArgs& args,
                              std::integer_sequence<int, kTiles...>) {
  static constexpr PipelinedKernel (*kFind[])(bool, bool) = {FindKernel<kEngine, kTiles>...};
  const auto find =
      args.selected.flags != nullptr ? FindKernel<kEngine, kRepairTile, true> : kFind[plan.tile];
  return find(args.a_k_major, args.b_k_major);
}

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

// FindEncode looks the function up in the loaded driver. The module links no driver, so that it can
// be imported on a machine without one. The symbol is cached; a failure is not.
cudaError_t FindEncode(EncodeFunction* encode) {
  static std::atomic<void*> known{nullptr};
  void* symbol = known.load(std::memory_order_relaxed);
  if (symbol == nullptr) {
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) return error;
    if (symbol == nullptr) return cudaErrorNotSupported;
    known.store(symbol, std::memory_order_relaxed);
  }
  *encode = reinterpret_cast<EncodeFunction>(symbol);
  return cudaSuccess;
}

// MapOperand encodes the tensor map of A or B, whose boxes are tiles. A K-major operand has
// dimensions (depth, lines, matrices) and boxes of kBoxDepth x block_lines. Their 16-byte packs
// have the 128-byte swizzle: pack p of line l lies at place p ^ (l % 8). An MN-major operand has
// dimensions (lines, depth, matrices) and boxes of block_lines x block_k without swizzle.
//
// Requires: stored rows start at 16-byte boundaries, and sizes and strides fit a map. EngineOf in
// plan.cc makes sure of both for every plan with kTma.
cudaError_t MapOperand(const SgemmPlan& plan, const SgemmArgs& args, bool is_a, CUtensorMap* map) {
  EncodeFunction encode = nullptr;
  if (const cudaError_t error = FindEncode(&encode); error != cudaSuccess) return error;
  const bool k_major = is_a ? args.a_k_major : args.b_k_major;
  const int64_t lines = is_a ? args.m : args.n, strided = k_major ? lines : args.k;
  const int64_t pitch = is_a ? args.pitch_a : args.pitch_b;
  const auto unsign = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t sizes[] = {unsign(k_major ? args.k : lines), unsign(strided),
                              unsign(is_a ? args.matrices_a : args.matrices_b)};
  const cuuint64_t strides[] = {unsign(pitch * 4), unsign(pitch * strided * 4)};
  const auto block_lines = static_cast<cuuint32_t>(is_a ? plan.block_m : plan.block_n);
  const cuuint32_t box_k_major[] = {kBoxDepth, block_lines, 1};
  const cuuint32_t box[] = {block_lines, static_cast<cuuint32_t>(plan.block_k), 1};
  const cuuint32_t dense[] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(is_a ? args.a : args.b),
             sizes, strides, k_major ? box_k_major : box, dense, CU_TENSOR_MAP_INTERLEAVE_NONE,
             k_major ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchPipelined(const SgemmPlan& plan, const SgemmArgs& args, int part,
                            cudaStream_t stream) {
  CUtensorMap map_a{}, map_b{};
  const bool is_tma = plan.engine == Engine::kTma;
  if (is_tma) {
    cudaError_t error = MapOperand(plan, args, /*is_a=*/true, &map_a);
    if (error == cudaSuccess) error = MapOperand(plan, args, /*is_a=*/false, &map_b);
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
