// Launches the kernels of the rung `tensor`: split, multiply, repair.
//
// Owns: the pointers into its scratch, and the order of launches. Must not know: policy.
#include <algorithm>

#include "core/function_attributes.h"
#include "sgemm/launch.h"
#include "sgemm/tensor/kernel.cuh"
#include "sgemm/tensor/repair.cuh"
#include "sgemm/tensor/split.cuh"

namespace jaxkernels {
namespace {

template <typename T>
T* At(const SgemmArgs& args, int64_t place) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(args.partial) + place);
}

TensorScratch ScratchOf(const SgemmPlan& plan, const SgemmArgs& args) {
  int64_t batch = 1;
  for (int i = 0; i < args.batch_dims; ++i) batch *= args.batch[i].size;
  return MakeTensorScratch(args.m, args.n, args.k, args.members_a, args.members_b, batch,
                           plan.split_k);
}

void FindPlaces(const SgemmArgs& args, const OperandScratch& places, TensorOperand& operand) {
  operand.images = At<char>(args, places.images);
  operand.factors = At<float2>(args, places.factors);
  operand.maxima = At<uint32_t>(args, places.maxima);
  operand.norms = At<uint32_t>(args, places.norms);
  operand.marks = At<uint32_t>(args, places.marks);
  operand.tile_marks = At<uint32_t>(args, places.tile_marks);
}

TensorArgs ArgsOf(const SgemmPlan& plan, const SgemmArgs& args, const TensorScratch& scratch,
                  bool a_along_k, bool b_along_k) {
  TensorArgs tensor = {};
  tensor.product = args;
  const int steps = static_cast<int>(scratch.steps);
  const int tiles_m = static_cast<int>(scratch.tiles_m),
            tiles_n = static_cast<int>(scratch.tiles_n);
  tensor.a = {args.a,    args.m,         args.k,  args.pitch_a, args.members_a,
              a_along_k, args.aligned_a, tiles_m, steps};
  tensor.b = {args.b,    args.n,         args.k,  args.pitch_b, args.members_b,
              b_along_k, args.aligned_b, tiles_n, steps};
  FindPlaces(args, scratch.a, tensor.a);
  FindPlaces(args, scratch.b, tensor.b);
  tensor.steps = steps;
  tensor.tiles_m = tiles_m;
  tensor.tiles_n = tiles_n;
  tensor.batch = static_cast<int>(scratch.tiles / (scratch.tiles_m * scratch.tiles_n));
  tensor.flags = At<uint32_t>(args, scratch.flags);
  tensor.flagged = At<uint32_t>(args, scratch.flagged);
  tensor.repair_count = At<uint32_t>(args, scratch.repair_count);
  tensor.repairs = At<uint2>(args, scratch.repairs);
  tensor.most_flagged = static_cast<uint32_t>(plan.most_marked_tiles);
  tensor.splits = plan.split_k;
  tensor.steps_of_split = static_cast<int>(CeilDiv(scratch.steps, plan.split_k));
  tensor.parts = At<float4>(args, scratch.parts);
  return tensor;
}

cudaError_t Start(const void* kernel, int64_t blocks, int threads, int smem_bytes, void** arguments,
                  cudaStream_t stream) {
  if (const cudaError_t error = AllowAllSharedMemory(kernel); error != cudaSuccess) return error;
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), arguments,
                          smem_bytes, stream);
}

template <SplitPass kPass>
cudaError_t StartSplit(TensorArgs& args, cudaStream_t stream) {
  unsigned blocks_a = static_cast<unsigned>(SplitBlocks<kPass>(args.a));
  const int64_t blocks = blocks_a + SplitBlocks<kPass>(args.b);
  if (blocks == 0) return cudaSuccess;
  void* arguments[] = {&args, &blocks_a};
  return Start(reinterpret_cast<const void*>(SplitOperands<kPass>), blocks, kSplitThreads,
               sizeof(SplitSmem), arguments, stream);
}

cudaError_t StartProduct(const SgemmPlan& plan, TensorArgs& args, TileRange tiles,
                         cudaStream_t stream) {
  if (tiles.begin == tiles.end) return cudaSuccess;
  void* arguments[] = {&args, &tiles};
  const bool parts = plan.split_k > 1;
  const auto kernel = plan.compensated
                          ? (parts ? TensorProduct<true, true> : TensorProduct<true, false>)
                          : (parts ? TensorProduct<false, true> : TensorProduct<false, false>);
  return Start(reinterpret_cast<const void*>(kernel),
               std::min<int64_t>(plan.grid_blocks, tiles.end - tiles.begin), plan.block_threads,
               plan.smem_bytes, arguments, stream);
}

// StartFinish launches one cluster per tile.
cudaError_t StartFinish(TensorArgs& args, int64_t tiles, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kFinishBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(tiles * kFinishBlocks));
  config.blockDim = dim3(kFinishThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* arguments[] = {&args};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(FinishParts), arguments);
}

cudaError_t StartRepairs(const SgemmPlan& plan, TensorArgs& args, cudaStream_t stream) {
  void* arguments[] = {&args};
  const auto kernel = plan.split_k > 1 ? RepairElements<true> : RepairElements<false>;
  return Start(reinterpret_cast<const void*>(kernel), kRepairBlocksOfSm * plan.sm_count,
               kRepairThreads, 0, arguments, stream);
}

}  // namespace

cudaError_t LaunchTensor(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                         bool b_along_k, TileMarks* made, cudaStream_t stream) {
  const TensorScratch scratch = ScratchOf(plan, args);
  TensorArgs tensor = ArgsOf(plan, args, scratch, a_along_k, b_along_k);
  cudaError_t error = cudaMemsetAsync(At<char>(args, scratch.zeroed), 0,
                                      static_cast<size_t>(scratch.bytes - scratch.zeroed), stream);
  if (error != cudaSuccess) return error;
  error = StartSplit<SplitPass::kFirst>(tensor, stream);
  if (error != cudaSuccess) return error;
  error = StartSplit<SplitPass::kSecond>(tensor, stream);
  if (error != cudaSuccess) return error;
  const auto first = static_cast<unsigned>(plan.tiles_before_look);
  const auto tiles = static_cast<unsigned>(scratch.tiles * plan.split_k);
  error = StartProduct(plan, tensor, {0, first, false}, stream);
  if (error != cudaSuccess) return error;
  error = StartProduct(plan, tensor, {first, tiles, first > 0}, stream);
  if (error != cudaSuccess) return error;
  if (plan.split_k > 1) {
    error = StartFinish(tensor, scratch.tiles, stream);
    if (error != cudaSuccess) return error;
  }
  *made = {tensor.flags, tensor.flagged, tensor.most_flagged};
  return StartRepairs(plan, tensor, stream);
}

}  // namespace jaxkernels
