#include <utility>

#include "core/launch_kernel.h"
#include "sgemm/launch.h"
#include "sgemm/thin/k_major.cuh"
#include "sgemm/thin/mn_major.cuh"
#include "sgemm/thin/small_k.cuh"

namespace jaxkernels {
namespace {

template <int kShortLines>
auto FindShortSide(ThinForm form, bool in_packs) {
  if constexpr (kShortLines <= kThinMaxShortLinesKMajor) {
    if (form == ThinForm::kKMajor) {
      return in_packs ? SumKMajor<kShortLines, 4> : SumKMajor<kShortLines, 1>;
    }
  }
  return in_packs ? SumMNMajor<kShortLines, 4> : SumMNMajor<kShortLines, 1>;
}

cudaError_t LaunchShortSide(const SgemmPlan& plan, const SgemmArgs& product, cudaStream_t stream) {
  ThinArgs args{};
  args.product = product;
  args.long_is_a = plan.long_is_a;
  args.short_k_major = plan.long_is_a ? product.b_k_major : product.a_k_major;
  args.short_lines = static_cast<int>(plan.long_is_a ? product.n : product.m);
  args.long_lines = plan.long_is_a ? product.m : product.n;
  const int lines_of_block = plan.long_is_a ? plan.block_m : plan.block_n;
  args.lanes = lines_of_block / kMNMajorThreadLines;
  args.iterations = lines_of_block / kKMajorIterationLines;
  args.k_per_block = plan.k_per_split / plan.cluster_blocks;
  args.groups = static_cast<unsigned>(plan.tiles_m * plan.tiles_n);
  args.parts = static_cast<unsigned>(plan.cluster_blocks * plan.split_k);
  args.batch_count = product.batch.Count();
  const int short_lines = plan.long_is_a ? plan.block_n : plan.block_m;
  const bool in_packs = (plan.long_is_a ? plan.pack_a : plan.pack_b) > 1;
  const auto find = short_lines == 1   ? FindShortSide<1>
                    : short_lines == 4 ? FindShortSide<4>
                                       : FindShortSide<8>;
  static_assert(ThinShortLinesOf(kThinMaxShortLines) == 8);
  return LaunchKernel(find(plan.thin, in_packs),
                      {.blocks = plan.grid_blocks,
                       .threads = plan.block_threads,
                       .cluster_blocks = plan.cluster_blocks},
                      stream, args);
}

using SmallKKernel = void (*)(SmallKArgs);

template <int... kTiles>
SmallKKernel FindSmallK(int tile, bool a_k_major, std::integer_sequence<int, kTiles...>) {
  static constexpr SmallKKernel kKMajor[] = {SumSmallK<kTiles, true>...};
  static constexpr SmallKKernel kMNMajor[] = {SumSmallK<kTiles, false>...};
  return a_k_major ? kKMajor[tile] : kMNMajor[tile];
}

SgemmArgs Transposed(SgemmArgs args) {
  std::swap(args.a, args.b);
  std::swap(args.m, args.n);
  std::swap(args.a_k_major, args.b_k_major);
  std::swap(args.aligned_a, args.aligned_b);
  for (BatchDim& dim : args.batch.dim) std::swap(dim.stride_a, dim.stride_b);
  return args;
}

cudaError_t LaunchSmallK(const SgemmPlan& plan, const SgemmArgs& product, cudaStream_t stream) {
  SmallKArgs args{};
  args.product = plan.long_is_a ? product : Transposed(product);
  args.b_k_major = args.product.b_k_major;
  args.tiles_m = static_cast<unsigned>(plan.long_is_a ? plan.tiles_m : plan.tiles_n);
  args.tiles_n = static_cast<unsigned>(plan.long_is_a ? plan.tiles_n : plan.tiles_m);
  const SmallKKernel kernel = FindSmallK(plan.tile, args.product.a_k_major,
                                         std::make_integer_sequence<int, kSmallKTileCount>{});
  return LaunchKernel(kernel,
                      {.blocks = plan.grid_blocks,
                       .threads = plan.block_threads,
                       .smem_bytes = plan.smem_bytes,
                       .prefers_smem = true},
                      stream, args);
}

}  // namespace

cudaError_t LaunchThin(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream) {
  return plan.thin == ThinForm::kSmallK ? LaunchSmallK(plan, args, stream)
                                        : LaunchShortSide(plan, args, stream);
}

}  // namespace jaxkernels
