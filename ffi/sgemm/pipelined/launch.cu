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

using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// FindEncode looks the function up in the loaded driver. The module links no driver, so that it can
// be imported on a machine without one. The symbol is cached; a failure is not.
cudaError_t FindEncode(EncodeFunction* encode) {
  static std::atomic<void*> known{nullptr};
  void* symbol = known.load(std::memory_order_relaxed);
  if (symbol == nullptr) {
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol,
                                                               12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &symbol, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) return error;
    if (symbol == nullptr) return cudaErrorNotSupported;
    known.store(symbol, std::memory_order_relaxed);
  }
  *encode = reinterpret_cast<EncodeFunction>(symbol);
  return cudaSuccess;
}

struct TmaOperand {
  const float* data;
  bool k_major;  // K-major, else MN-major
  int64_t lines, depth, matrices;
  int64_t pitch;  // elements from one stored row to the next
  int block_lines, block_k;
};

// MapOperand encodes the map. A K-major operand has dimensions (depth, lines, matrices) and boxes
// of kBoxDepth x block_lines. Their 16-byte packs have the 128-byte swizzle: pack p of line l lies
// at place p ^ (l % 8). An MN-major operand has dimensions (lines, depth, matrices) and boxes of
// block_lines x block_k without swizzle.
//
// Requires: stored rows start at 16-byte boundaries, and sizes and strides fit a map. EngineOf in
// plan.cc makes sure of both for every plan with kTma.
cudaError_t MapOperand(const TmaOperand& operand, CUtensorMap* map) {
  EncodeFunction encode = nullptr;
  if (const cudaError_t error = FindEncode(&encode); error != cudaSuccess) return error;
  const int64_t contiguous = operand.k_major ? operand.depth : operand.lines;
  const int64_t strided = operand.k_major ? operand.lines : operand.depth;
  const auto unsign = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t sizes[] = {unsign(contiguous), unsign(strided), unsign(operand.matrices)};
  const cuuint64_t strides[] = {unsign(operand.pitch * 4), unsign(operand.pitch * strided * 4)};
  const auto lines = static_cast<cuuint32_t>(operand.block_lines);
  const cuuint32_t box_k_major[] = {kBoxDepth, lines, 1};
  const cuuint32_t box[] = {lines, static_cast<cuuint32_t>(operand.block_k), 1};
  const cuuint32_t dense[] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(operand.data), sizes,
             strides, operand.k_major ? box_k_major : box, dense, CU_TENSOR_MAP_INTERLEAVE_NONE,
             operand.k_major ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
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
