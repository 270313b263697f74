#include "sgemm/launch.h"
#include "sgemm/rungs/block_tile.cuh"
#include "sgemm/rungs/naive.cuh"
#include "sgemm/rungs/split_tile.cuh"
#include "sgemm/rungs/thread_tile.cuh"
#include "sgemm/rungs/warp_tile.cuh"

namespace jaxkernels {
namespace {

using RungKernel = void (*)(SgemmArgs, RungGrid);

template <bool kAlongKA, bool kAlongKB>
RungKernel FindRung(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNaive:
      return NaiveSgemm<kAlongKA, kAlongKB>;
    case Algorithm::kBlockTile:
      return BlockTileSgemm<kAlongKA, kAlongKB>;
    case Algorithm::kThreadTile:
      return RegisterTileSgemm<ThreadTileLayout, kAlongKA, kAlongKB>;
    case Algorithm::kWarpTile:
      return RegisterTileSgemm<WarpTileLayout, kAlongKA, kAlongKB>;
    case Algorithm::kSplitTile:
      return RegisterTileSgemm<SplitTileLayout, kAlongKA, kAlongKB>;
    case Algorithm::kAuto:
    case Algorithm::kPipelined:
      break;
  }
  return nullptr;
}

}  // namespace

cudaError_t LaunchRung(const SgemmPlan& plan, const SgemmArgs& args, bool a_along_k, bool b_along_k,
                       cudaStream_t stream) {
  RungKernel kernel =
      a_along_k ? (b_along_k ? FindRung<true, true> : FindRung<true, false>)(plan.algorithm)
                : (b_along_k ? FindRung<false, true> : FindRung<false, false>)(plan.algorithm);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  SgemmArgs kernel_args = args;
  RungGrid grid{static_cast<unsigned>(plan.tiles_m), static_cast<unsigned>(plan.tiles_n)};
  void* arguments[] = {&kernel_args, &grid};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>(plan.grid_blocks)), dim3(plan.block_threads),
                          arguments, 0, stream);
}

}  // namespace jaxkernels
