// Maps a block to its tile of C, for the rungs below the pipelined one.
#ifndef JAXKERNELS_SGEMM_RUNGS_RUNG_GRID_CUH_
#define JAXKERNELS_SGEMM_RUNGS_RUNG_GRID_CUH_

#include "sgemm/args.cuh"

namespace jaxkernels {

struct RungGrid {
  unsigned tiles_m, tiles_n;
};

struct RungBlock {
  int64_t tile_m, tile_n;
  const float* a;  // of the block's batch member
  const float* b;
  int64_t c_offset;
};

// BlockOfGrid orders tiles along n first, then along m, then over the batch.
__device__ inline RungBlock BlockOfGrid(const SgemmArgs& args, const RungGrid& grid) {
  const unsigned tiles = grid.tiles_m * grid.tiles_n;
  const unsigned tile = blockIdx.x % tiles, member = blockIdx.x / tiles;
  const MemberIndices matrices = IndicesOfMember(args, member);
  return {tile / grid.tiles_n, tile % grid.tiles_n, args.a + matrices.a * args.m * args.k,
          args.b + matrices.b * args.n * args.k, member * args.m * args.n};
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_RUNGS_RUNG_GRID_CUH_
