#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/launch.h"
#include "sgemm/reduce_splits.cuh"

namespace jaxkernels {
namespace {

int64_t MembersOf(const SgemmArgs& args) {
  int64_t members = 1;
  for (int i = 0; i < args.batch_dims; ++i) members *= args.batch[i].size;
  return members;
}

// LaunchReduceSplits computes out = alpha * (sum of the splits) + beta * C.
cudaError_t LaunchReduceSplits(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream) {
  const void* kernel = plan.reduce_pack == 4 ? reinterpret_cast<const void*>(ReduceSplits<4>)
                                             : reinterpret_cast<const void*>(ReduceSplits<1>);
  const int64_t per_block = int64_t{kReduceThreads} * plan.reduce_pack;
  int splits = plan.split_k * plan.launches;
  int64_t elements = args.m * args.n * MembersOf(args);
  SgemmArgs kernel_args = args;
  void* arguments[] = {&kernel_args, &elements, &splits};
  const auto blocks = static_cast<unsigned>((elements + per_block - 1) / per_block);
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(kReduceThreads), arguments, 0, stream);
}

// LaunchPart launches the kernel of a rung for all of k or for one part of it.
cudaError_t LaunchPart(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k, bool b_along_k,
                       int part, cudaStream_t stream) {
  if (plan.algorithm == Algorithm::kThin) {
    return LaunchThin(plan, args, a_along_k, b_along_k, stream);
  }
  if (plan.algorithm != Algorithm::kPipelined) {
    return LaunchRung(plan, args, a_along_k, b_along_k, stream);
  }
  const auto launch = plan.engine == Engine::kTma ? LaunchPipelinedTma : LaunchPipelinedFloats;
  return launch(plan, args, a_along_k, b_along_k, part, stream);
}

// LaunchParts launches all parts of k, one after the other.
cudaError_t LaunchParts(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k,
                        bool b_along_k, cudaStream_t stream) {
  SgemmArgs part_args = args;
  for (int part = 0; part < plan.launches; ++part) {
    const cudaError_t error = LaunchPart(plan, part_args, a_along_k, b_along_k, part, stream);
    if (error != cudaSuccess) return error;
    part_args.c = args.out;  // the sum of the parts so far
    part_args.beta = 1.0f;
  }
  return plan.reduce_pack > 0 ? LaunchReduceSplits(plan, args, stream) : cudaSuccess;
}

// GroupOf returns the members of group `index`. The last group may have fewer.
SgemmArgs GroupOf(const SgemmPlan& plan, SgemmArgs args, bool trans_a, bool trans_b,
                  int64_t index) {
  BatchDim& outermost = args.batch[0];
  const int64_t first = index * CeilDiv(outermost.size, plan.groups);
  const int64_t size = std::min(CeilDiv(outermost.size, plan.groups), outermost.size - first);
  args.a += first * outermost.stride_a * args.pitch_a * (trans_a ? args.k : args.m);
  args.b += first * outermost.stride_b * args.pitch_b * (trans_b ? args.n : args.k);
  const int64_t left_out = outermost.size - size;
  args.members_a -= left_out * outermost.stride_a;
  args.members_b -= left_out * outermost.stride_b;
  outermost.size = size;
  const int64_t elements = first * (MembersOf(args) / size) * args.m * args.n;
  if (args.c != nullptr) args.c += elements;
  args.out += elements;
  return args;
}

cudaError_t LaunchTensorGroup(const SgemmPlan& plan, SgemmPlan repairs, const SgemmArgs& args,
                              bool a_along_k, bool b_along_k, cudaStream_t stream) {
  repairs.grid_blocks = repairs.tiles_m * repairs.tiles_n * MembersOf(args);
  SgemmArgs again = args;
  again.aligned_c = repairs.pack_c > 1;  // `tensor` stores smaller packs
  const cudaError_t error = LaunchTensor(plan, args, a_along_k, b_along_k, &again.made, stream);
  if (error != cudaSuccess || plan.split_k > 1) return error;  // split-k leaves no tile to repair
  return LaunchParts(repairs, again, a_along_k, b_along_k, stream);
}

}  // namespace

cudaError_t LaunchSgemm(const SgemmPlan& plan, const SgemmPlan& repairs, const SgemmArgs& args,
                        bool trans_a, bool trans_b, cudaStream_t stream) {
  if (plan.grid_blocks == 0) return cudaSuccess;
  const bool a_along_k = !trans_a, b_along_k = trans_b;
  if (plan.algorithm != Algorithm::kTensor) {
    return LaunchParts(plan, args, a_along_k, b_along_k, stream);
  }
  for (int64_t i = 0; i < plan.groups; ++i) {
    const SgemmArgs group = plan.groups > 1 ? GroupOf(plan, args, trans_a, trans_b, i) : args;
    const cudaError_t error = LaunchTensorGroup(plan, repairs, group, a_along_k, b_along_k, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxkernels
