#include "sgemm/launch.h"
#include "sgemm/reduce_splits.cuh"

namespace jaxkernels {
namespace {

// out = alpha * (sum of the splits) + beta * C, for all `elements` of the result.
cudaError_t LaunchReduceSplits(const SgemmArgs& args, int64_t elements, int splits,
                               cudaStream_t stream) {
  // Few elements are spread over many threads.
  const bool in_quads = elements % 4 == 0 && args.quads_c;
  const int pack = in_quads && elements >= (1 << 18) ? 4 : 1;
  const void* kernel = pack == 4 ? reinterpret_cast<const void*>(ReduceSplits<4>)
                                 : reinterpret_cast<const void*>(ReduceSplits<1>);
  const int64_t per_block = int64_t{kReduceThreads} * pack;
  SgemmArgs kernel_args = args;
  void* arguments[] = {&kernel_args, &elements, &splits};
  const auto blocks = static_cast<unsigned>((elements + per_block - 1) / per_block);
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(kReduceThreads), arguments, 0, stream);
}

}  // namespace

cudaError_t LaunchSgemm(const SgemmPlan& plan, const SgemmArgs& args, bool trans_a, bool trans_b,
                        cudaStream_t stream) {
  int64_t elements = args.m * args.n;
  for (int i = 0; i < args.batch_dims; ++i) elements *= args.batch[i].size;
  if (elements == 0) return cudaSuccess;
  if (args.k == 0) return LaunchReduceSplits(args, elements, 0, stream);

  const bool a_along_k = !trans_a, b_along_k = trans_b;
  if (plan.algorithm != Algorithm::kPipelined) {
    return LaunchRung(plan, args, a_along_k, b_along_k, stream);
  }
  SgemmArgs part_args = args;
  for (int part = 0; part < plan.launches; ++part) {
    const cudaError_t error = LaunchPipelined(plan, part_args, a_along_k, b_along_k, part, stream);
    if (error != cudaSuccess) return error;
    part_args.c = args.out;  // what the parts so far have summed up to
    part_args.beta = 1.0f;
  }
  if (plan.split_k == 1) return cudaSuccess;
  return LaunchReduceSplits(args, elements, plan.split_k, stream);
}

}  // namespace jaxkernels
