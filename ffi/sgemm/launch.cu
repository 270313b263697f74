#include <algorithm>

#include "core/ceil_div.h"
#include "core/launch_kernel.h"
#include "sgemm/epilogue.cuh"
#include "sgemm/launch.h"

namespace jaxkernels {

constexpr int kReduceThreads = 128;

// ReduceSplits computes out = alpha * (partial[0] + partial[1] + ...) + beta * C, always in this
// order. A thread adds kPack neighbouring elements of all splits. Every sum is read once, from the
// L2, where the blocks of the splits have just written it. `elements`: of one split; a multiple of
// kPack. With zero splits (k = 0) the result is beta * C.
template <int kPack>
__global__ void __launch_bounds__(kReduceThreads)
    ReduceSplits(const __grid_constant__ SgemmArgs args, int64_t elements, int splits) {
  struct alignas(kPack * sizeof(float)) Pack {
    float v[kPack];
  };
  const int64_t index = (int64_t{blockIdx.x} * kReduceThreads + threadIdx.x) * kPack;
  if (index >= elements) return;
  Pack sum = {};
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const Pack term = *reinterpret_cast<const Pack*>(args.partial + split * elements + index);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum.v[i] += term.v[i];
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    args.out[index + i] = LinearCombinationAt(args.alpha, sum.v[i], args.beta, args.c + index + i);
}

namespace {

cudaError_t LaunchReduceSplits(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream) {
  const auto kernel = plan.reduce_pack == 4 ? ReduceSplits<4> : ReduceSplits<1>;
  const int64_t elements = args.m * args.n * args.batch.Count();
  const int64_t blocks = CeilDiv(elements, int64_t{kReduceThreads} * plan.reduce_pack);
  return LaunchKernel(kernel, {blocks, kReduceThreads}, stream, args, elements,
                      plan.split_k * plan.launches);
}

cudaError_t LaunchParts(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream) {
  SgemmArgs part_args = args;
  for (int part = 0; part < plan.launches; ++part) {
    const cudaError_t error =
        plan.algorithm == Algorithm::kPipelined ? LaunchPipelined(plan, part_args, part, stream)
        : plan.algorithm == Algorithm::kThin    ? LaunchThin(plan, part_args, stream)
                                                : LaunchRung(plan, part_args, stream);
    if (error != cudaSuccess) return error;
    part_args.c = args.out;  // the sum of the parts so far
    part_args.beta = 1.0f;
  }
  return plan.reduce_pack > 0 ? LaunchReduceSplits(plan, args, stream) : cudaSuccess;
}

SgemmArgs GroupOf(const SgemmPlan& plan, SgemmArgs args, int64_t index) {
  BatchDim& outermost = args.batch.dim[0];
  const int64_t first = index * CeilDiv(outermost.size, plan.groups);
  const int64_t size = std::min(CeilDiv(outermost.size, plan.groups), outermost.size - first);
  args.a += first * outermost.stride_a * args.pitch_a * (args.a_k_major ? args.m : args.k);
  args.b += first * outermost.stride_b * args.pitch_b * (args.b_k_major ? args.n : args.k);
  const int64_t left_out = outermost.size - size;
  args.matrices_a -= left_out * outermost.stride_a;
  args.matrices_b -= left_out * outermost.stride_b;
  outermost.size = size;
  const int64_t elements = first * (args.batch.Count() / size) * args.m * args.n;
  if (args.c != nullptr) args.c += elements;
  args.out += elements;
  return args;
}

cudaError_t LaunchTensorGroup(const SgemmPlan& plan, SgemmPlan repairs, const SgemmArgs& args,
                              cudaStream_t stream) {
  repairs.grid_blocks = repairs.tiles_m * repairs.tiles_n * args.batch.Count();
  SgemmArgs again = args;
  again.aligned_c = repairs.pack_c > 1;  // `tensor` stores smaller packs
  const cudaError_t error = LaunchTensor(plan, args, &again.selected, stream);
  if (error != cudaSuccess || plan.split_k > 1) return error;  // split-k leaves no tile to repair
  return LaunchParts(repairs, again, stream);
}

}  // namespace

cudaError_t LaunchSgemm(const SgemmPlan& plan, const SgemmPlan& repairs, const SgemmArgs& args,
                        cudaStream_t stream) {
  if (plan.grid_blocks == 0) return cudaSuccess;
  if (plan.algorithm != Algorithm::kTensor) return LaunchParts(plan, args, stream);
  for (int64_t i = 0; i < plan.groups; ++i) {
    const SgemmArgs group = plan.groups > 1 ? GroupOf(plan, args, i) : args;
    const cudaError_t error = LaunchTensorGroup(plan, repairs, group, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxkernels
