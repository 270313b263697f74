// Chooses the tile, the engine and the split of k of a product by a cost model.
//
// Owns: the model, and the choice from the table of tiles. Must not know: CUDA, plans.
#ifndef JAXKERNELS_SGEMM_TILE_CHOICE_H_
#define JAXKERNELS_SGEMM_TILE_CHOICE_H_

#include <cstdint>

#include "core/ceil_div.h"
#include "core/device_limits.h"
#include "sgemm/problem.h"
#include "sgemm/tiles.h"

namespace jaxkernels {

inline constexpr int64_t kMaxSplit = 1024;

// A thread's sum over more k than this is made by several launches, which each add a part to C.
// This keeps the error small: rounding errors grow with the square root of the number of terms.
// H200, 8192^3 (2026-11): relF 1.6e-6 in one launch, where cuBLAS has 9.4e-7.
inline constexpr int64_t kMaxDepthOfLaunch = 4096;
inline constexpr int64_t kDepthOfLaunch = 2816;

struct TileChoice {
  int tile = 0;  // index into kPipelinedTiles; 0 if k is 0
  int64_t split_k = 1;
};

// ChooseOrder finds the cheapest tile and split of k for one batch member, or for the whole batch
// if the problem sets for_batch. It keeps a nonzero split_k.
TileChoice ChooseOrder(const SgemmProblem& problem, const DeviceLimits& limits, int split_k);

// ChooseTile finds the cheapest tile for the whole batch among those that sum in the order of
// `one`.
int ChooseTile(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& one);

// EngineOf returns how a tile gets its operands. kTma needs compute capability 9.0, operands that a
// tensor map can describe, and room for two blocks per SM, so that one computes while the other
// waits.
Engine EngineOf(const SgemmProblem& problem, const DeviceLimits& limits, const PipelinedTile& tile);

// CyclesOf estimates the time of a choice for `batch_count` batch members, in cycles of an SM.
// The estimate only ranks choices.
double CyclesOf(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& choice,
                int64_t batch_count);

// KPerSplit returns the k of each of `split_k` parts; the last one may have less.
int64_t KPerSplit(int64_t k, int64_t split_k);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TILE_CHOICE_H_
