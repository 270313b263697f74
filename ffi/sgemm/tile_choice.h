// Which tile, which engine and which split of k a product gets: the cheapest, by a model of what
// they cost.
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

// A thread's sum over more k than this is made by several launches, each of which adds its part to
// C, for the sake of accuracy: rounding errors grow with the square root of the number of terms.
// H200, 8192^3 (2026-11): relF 1.6e-6 in one launch, where cuBLAS has 9.4e-7.
inline constexpr int64_t kMaxDepthOfLaunch = 4096;
inline constexpr int64_t kDepthOfLaunch = 2816;

struct TileChoice {
  int tile = 0;  // index into kPipelinedTiles; without k the first does as well as any
  int64_t split_k = 1;
};

// The cheapest tile and split of k for one member of the batch, or for all of them where the
// problem says for_batch. Where split_k is given (not 0) it stays.
TileChoice ChooseOrder(const SgemmProblem& problem, const DeviceLimits& limits, int split_k);

// The cheapest tile for the whole batch among those that sum in the order of `one`.
int ChooseTile(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& one);

// How a tile would get its operands. The tensor memory accelerator came with compute
// capability 9.0. Both operands have to lie as it can read them, and two blocks have to fit an SM,
// so that one computes while the other waits.
Engine EngineOf(const SgemmProblem& problem, const DeviceLimits& limits, const PipelinedTile& tile);

// What a choice is expected to take for so many members of the batch, in cycles of an SM. It only
// has to rank choices.
double CyclesOf(const SgemmProblem& problem, const DeviceLimits& limits, const TileChoice& choice,
                int64_t members);

// The share of k of each of so many parts; the last one may have less.
int64_t KPerSplit(int64_t k, int64_t split_k);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TILE_CHOICE_H_
