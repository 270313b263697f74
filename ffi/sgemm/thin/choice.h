// Chooses how a thin product is cut: its form, its blocks, and the shares of k.
//
// Owns: the choice and its cost model. The order of summation depends on m, n, k, the transposes
// and the device, unless the problem sets for_batch. kAlongK also depends on whether rows start at
// 16-byte boundaries. Must not know: CUDA, plans.
#ifndef JAXKERNELS_SGEMM_THIN_CHOICE_H_
#define JAXKERNELS_SGEMM_THIN_CHOICE_H_

#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/problem.h"
#include "sgemm/thin/forms.h"

namespace jaxkernels {

// IsThin tells whether any form serves: k is small (the limit is higher if one side has few lines),
// or one side has very few lines.
bool IsThin(const SgemmProblem& problem);

// SumsInOrder tells whether each element is one chain of FFMA in the order of k. The pipelined rung
// also sums up to 64 k in this order, because it neither splits nor slices them.
bool SumsInOrder(const SgemmProblem& problem);

struct ThinChoice {
  ThinForm form = ThinForm::kNone;  // kNone if the product is not thin
  bool many_is_a = false;           // A is the long side (kShallow: unless C is one row)
  int few = 1;                      // short-side lines that a kernel is compiled for; not kShallow
  int lanes = 32;                   // kAcrossK: threads side by side along lines
  int tile = 0, threads = 0;        // kShallow: index into kShallowTiles, threads of a block
  int turns = 1;                    // kAlongK: iterations of a block over its lines
  int cluster_blocks = 1;
  int64_t split_k = 1;
  int64_t k_per_block = 0;
};

// split_k: its value when the program was lowered, or 0.
ThinChoice ChooseThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k);

// Shared memory of a kShallow block, and the blocks that an SM holds at once. `problem` is the
// result of WithManyRows.
int ShallowSmemBytes(const SgemmProblem& problem, const ShallowTile& tile, int threads);
int ShallowBlocksPerSm(const SgemmProblem& problem, const DeviceLimits& limits,
                       const ShallowTile& tile, int threads);

// WithManyRows returns the product that kShallow computes: that of the transposes, in the same
// memory, if C is one row.
SgemmProblem WithManyRows(SgemmProblem problem);

// CyclesOfThin estimates the time of `members` batch members, in the cycles of tile_choice.h.
double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t members);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_CHOICE_H_
