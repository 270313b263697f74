#include <utility>

#include "core/function_attributes.h"
#include "sgemm/thin/shallow.cuh"
#include "sgemm/thin/start.h"

namespace jaxkernels {
namespace {

template <int... kTiles>
const void* FindShallowKernel(int tile, bool a_along_k, std::integer_sequence<int, kTiles...>) {
  const void* const across[] = {reinterpret_cast<const void*>(SumShallow<kTiles, false>)...};
  const void* const along[] = {reinterpret_cast<const void*>(SumShallow<kTiles, true>)...};
  return a_along_k ? along[tile] : across[tile];
}

// The product of the transposes, in the same memory, where C is one row.
SgemmArgs Transposed(SgemmArgs args) {
  std::swap(args.a, args.b);
  std::swap(args.m, args.n);
  std::swap(args.aligned_a, args.aligned_b);
  for (int i = 0; i < args.batch_dims; ++i) {
    std::swap(args.batch[i].stride_a, args.batch[i].stride_b);
  }
  return args;
}

}  // namespace

cudaError_t LaunchShallow(const SgemmPlan& plan, const SgemmArgs& product, bool a_along_k,
                          bool b_along_k, cudaStream_t stream) {
  ShallowArgs args{};
  args.product = plan.many_is_a ? product : Transposed(product);
  args.along_k_b = plan.many_is_a ? b_along_k : a_along_k;
  args.tiles_m = static_cast<unsigned>(plan.many_is_a ? plan.tiles_m : plan.tiles_n);
  args.tiles_n = static_cast<unsigned>(plan.many_is_a ? plan.tiles_n : plan.tiles_m);
  const void* const kernel =
      FindShallowKernel(plan.tile, plan.many_is_a ? a_along_k : b_along_k,
                        std::make_integer_sequence<int, kShallowTileCount>{});
  cudaError_t error = AllowAllSharedMemory(kernel);
  if (error == cudaSuccess) error = PreferSharedMemory(kernel);
  return error == cudaSuccess ? StartThin(plan, kernel, &args, stream) : error;
}

}  // namespace jaxkernels
