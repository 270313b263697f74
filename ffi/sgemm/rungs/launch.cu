#include "core/launch_kernel.h"
#include "sgemm/launch.h"
#include "sgemm/rungs/block_tile.cuh"
#include "sgemm/rungs/layouts.cuh"
#include "sgemm/rungs/naive.cuh"

namespace jaxkernels {
namespace {

using RungKernel = void (*)(SgemmArgs, RungGrid);

template <bool kKMajorA, bool kKMajorB>
RungKernel FindRung(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNaive:
      return NaiveSgemm<kKMajorA, kKMajorB>;
    case Algorithm::kBlockTile:
      return BlockTileSgemm<kKMajorA, kKMajorB>;
    case Algorithm::kThreadTile:
      return RegisterTileSgemm<ThreadTileLayout, kKMajorA, kKMajorB>;
    case Algorithm::kWarpTile:
      return RegisterTileSgemm<WarpTileLayout, kKMajorA, kKMajorB>;
    case Algorithm::kSplitTile:
      return RegisterTileSgemm<SplitTileLayout, kKMajorA, kKMajorB>;
    default:
      return nullptr;
  }
}

}  // namespace

cudaError_t LaunchRung(const SgemmPlan& plan, const SgemmArgs& args, cudaStream_t stream) {
  const auto find = args.a_k_major
                        ? (args.b_k_major ? FindRung<true, true> : FindRung<true, false>)
                        : (args.b_k_major ? FindRung<false, true> : FindRung<false, false>);
  const RungKernel kernel = find(plan.algorithm);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const RungGrid grid{static_cast<unsigned>(plan.tiles_m), static_cast<unsigned>(plan.tiles_n)};
  return LaunchKernel(kernel, {plan.grid_blocks, plan.block_threads}, stream, args, grid);
}

}  // namespace jaxkernels
