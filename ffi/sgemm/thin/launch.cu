#include <algorithm>
#include <utility>

#include "core/cluster.cuh"
#include "core/function_attributes.h"
#include "sgemm/launch.h"
#include "sgemm/thin/across_k.cuh"
#include "sgemm/thin/along_k.cuh"
#include "sgemm/thin/shallow.cuh"

namespace jaxkernels {
namespace {

template <int kFew>
const void* KernelOfFew(ThinForm form, bool in_packs) {
  if (form == ThinForm::kAlongK) {
    return in_packs ? reinterpret_cast<const void*>(SumAlongK<kFew, 4>)
                    : reinterpret_cast<const void*>(SumAlongK<kFew, 1>);
  }
  return in_packs ? reinterpret_cast<const void*>(SumAcrossK<kFew, 4>)
                  : reinterpret_cast<const void*>(SumAcrossK<kFew, 1>);
}

const void* FindKernel(ThinForm form, int few, bool in_packs) {
  return few == 1 ? KernelOfFew<1>(form, in_packs) : KernelOfFew<4>(form, in_packs);
}

template <int... kTiles>
const void* FindShallowKernel(int tile, bool a_along_k, std::integer_sequence<int, kTiles...>) {
  const void* const across[] = {reinterpret_cast<const void*>(SumShallow<kTiles, false>)...};
  const void* const along[] = {reinterpret_cast<const void*>(SumShallow<kTiles, true>)...};
  return a_along_k ? along[tile] : across[tile];
}

cudaError_t Start(const SgemmPlan& plan, const void* kernel, void* args, cudaStream_t stream) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(plan.cluster_blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid_blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.block_threads));
  config.dynamicSmemBytes = plan.smem_bytes;
  config.stream = stream;
  if (plan.cluster_blocks > 1) {
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  if (plan.cluster_blocks > kPortableClusterBlocks) {
    if (const cudaError_t error = AllowLargeClusters(kernel); error != cudaSuccess) return error;
  }
  void* arguments[] = {args};
  return cudaLaunchKernelExC(&config, kernel, arguments);
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
  return error == cudaSuccess ? Start(plan, kernel, &args, stream) : error;
}

}  // namespace

cudaError_t LaunchThin(const SgemmPlan& plan, const SgemmArgs& product, bool a_along_k,
                       bool b_along_k, cudaStream_t stream) {
  if (plan.thin == ThinForm::kShallow) {
    return LaunchShallow(plan, product, a_along_k, b_along_k, stream);
  }
  ThinArgs args{};
  args.product = product;
  args.many_is_a = plan.many_is_a;
  args.few_along_k = plan.many_is_a ? b_along_k : a_along_k;
  args.few = static_cast<int>(plan.many_is_a ? product.n : product.m);
  args.many = plan.many_is_a ? product.m : product.n;
  const int lines_of_block = plan.many_is_a ? plan.block_m : plan.block_n;
  args.lanes = lines_of_block / kAcrossLines;
  args.turns = lines_of_block / kAlongLinesOfTurn;
  args.k_per_block = plan.k_per_split / plan.cluster_blocks;
  args.groups = static_cast<unsigned>(plan.tiles_m * plan.tiles_n);
  args.parts = static_cast<unsigned>(plan.cluster_blocks * plan.split_k);
  args.members = 1;
  for (int i = 0; i < product.batch_dims; ++i) args.members *= product.batch[i].size;
  const int few = plan.many_is_a ? plan.block_n : plan.block_m;
  const int pack = plan.many_is_a ? plan.pack_a : plan.pack_b;
  return Start(plan, FindKernel(plan.thin, few, pack > 1), &args, stream);
}

}  // namespace jaxkernels
