// Launches the kernels of the rung `tensor`: split, multiply, repair.
//
// Owns: the pointers into its scratch, and the order of launches. Must not know: policy.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/launch_kernel.h"
#include "sgemm/launch.h"
#include "sgemm/tensor/kernel.cuh"
#include "sgemm/tensor/repair.cuh"
#include "sgemm/tensor/split.cuh"

namespace jaxkernels {
namespace {

template <typename T>
T* At(const SgemmArgs& args, int64_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(args.partial) + offset);
}

TensorOperand OperandOf(const SgemmArgs& args, bool is_a, const TensorScratch& scratch) {
  const OperandScratch& offsets = is_a ? scratch.a : scratch.b;
  return {.data = is_a ? args.a : args.b,
          .lines = is_a ? args.m : args.n,
          .depth = args.k,
          .pitch = is_a ? args.pitch_a : args.pitch_b,
          .matrices = is_a ? args.matrices_a : args.matrices_b,
          .k_major = is_a ? args.a_k_major : args.b_k_major,
          .packs = is_a ? args.aligned_a : args.aligned_b,
          .tiles = static_cast<int>(is_a ? scratch.tiles_m : scratch.tiles_n),
          .steps = static_cast<int>(scratch.steps),
          .packed = At<char>(args, offsets.packed),
          .factors = At<float2>(args, offsets.factors),
          .maxima = At<uint32_t>(args, offsets.maxima),
          .norms = At<uint32_t>(args, offsets.norms),
          .inexact = At<uint32_t>(args, offsets.inexact),
          .tile_inexact = At<uint32_t>(args, offsets.tile_inexact)};
}

TensorArgs ArgsOf(const SgemmPlan& plan, const SgemmArgs& args, const TensorScratch& scratch) {
  return {.product = args,
          .a = OperandOf(args, true, scratch),
          .b = OperandOf(args, false, scratch),
          .flags = At<uint32_t>(args, scratch.flags),
          .flagged = At<uint32_t>(args, scratch.flagged),
          .max_flagged = static_cast<uint32_t>(plan.max_flagged_tiles),
          .repairs = At<uint2>(args, scratch.repairs),
          .repair_count = At<uint32_t>(args, scratch.repair_count),
          .tiles_m = static_cast<int>(scratch.tiles_m),
          .tiles_n = static_cast<int>(scratch.tiles_n),
          .steps = static_cast<int>(scratch.steps),
          .batch = static_cast<int>(args.batch.Count()),
          .splits = plan.split_k,
          .steps_of_split = static_cast<int>(CeilDiv(scratch.steps, plan.split_k)),
          .parts = At<float4>(args, scratch.parts)};
}

template <SplitPass kPass>
cudaError_t LaunchSplit(const TensorArgs& args, cudaStream_t stream) {
  const int64_t blocks_a = SplitBlocks<kPass>(args.a);
  const int64_t blocks = blocks_a + SplitBlocks<kPass>(args.b);
  if (blocks == 0) return cudaSuccess;
  return LaunchKernel(SplitOperands<kPass>, {blocks, kSplitThreads, sizeof(SplitSmem)}, stream,
                      args, static_cast<unsigned>(blocks_a));
}

cudaError_t LaunchProduct(const SgemmPlan& plan, const TensorArgs& args, TileRange tiles,
                          cudaStream_t stream) {
  if (tiles.begin == tiles.end) return cudaSuccess;
  const bool parts = plan.split_k > 1;
  const auto kernel = plan.compensated
                          ? (parts ? TensorProduct<true, true> : TensorProduct<true, false>)
                          : (parts ? TensorProduct<false, true> : TensorProduct<false, false>);
  const int64_t blocks = std::min<int64_t>(plan.grid_blocks, tiles.end - tiles.begin);
  return LaunchKernel(kernel, {blocks, plan.block_threads, plan.smem_bytes}, stream, args, tiles);
}

}  // namespace

cudaError_t LaunchTensor(const SgemmPlan& plan, const SgemmArgs& args, TileSelection* flagged,
                         cudaStream_t stream) {
  const TensorScratch scratch = MakeTensorScratch(args.m, args.n, args.k, args.batch, plan.split_k);
  const TensorArgs tensor = ArgsOf(plan, args, scratch);
  *flagged = {tensor.flags, tensor.flagged, tensor.max_flagged};
  const auto first = static_cast<unsigned>(plan.probe_tiles);
  const auto tiles = static_cast<unsigned>(scratch.tiles * plan.split_k);
  cudaError_t error = cudaMemsetAsync(At<char>(args, scratch.zeroed), 0,
                                      static_cast<size_t>(scratch.bytes - scratch.zeroed), stream);
  if (error == cudaSuccess) error = LaunchSplit<SplitPass::kFirst>(tensor, stream);
  if (error == cudaSuccess) error = LaunchSplit<SplitPass::kSecond>(tensor, stream);
  if (error == cudaSuccess) error = LaunchProduct(plan, tensor, {0, first, false}, stream);
  if (error == cudaSuccess) error = LaunchProduct(plan, tensor, {first, tiles, first > 0}, stream);
  if (error == cudaSuccess && plan.split_k > 1) {
    error = LaunchKernel(FinishParts,
                         {.blocks = scratch.tiles * kFinishBlocks,
                          .threads = kFinishThreads,
                          .cluster_blocks = kFinishBlocks},
                         stream, tensor);
  }
  if (error != cudaSuccess) return error;
  return LaunchKernel(plan.split_k > 1 ? RepairElements<true> : RepairElements<false>,
                      {kRepairBlocksOfSm * plan.sm_count, kRepairThreads}, stream, tensor);
}

}  // namespace jaxkernels
