// How a thin product is cut: its form, its blocks, and how k is shared among them.
//
// Owns: the choice and what it is expected to take. The order of summation follows from m, n, k,
// the transposes and the device, for_batch aside; of kAlongK also from whether rows begin at
// multiples of 16 bytes. Must not know: CUDA, plans.
#ifndef JAXKERNELS_SGEMM_THIN_CHOICE_H_
#define JAXKERNELS_SGEMM_THIN_CHOICE_H_

#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/problem.h"
#include "sgemm/thin/forms.h"

namespace jaxkernels {

// Whether any form serves: few k, somewhat more where one side has few lines, or very few lines.
bool IsThin(const SgemmProblem& problem);

// Whether each element is one chain of FFMA in the order of k, as those of the pipelined rung are
// up to 64 k: so few are neither split nor shared by slices.
bool SumsInOrder(const SgemmProblem& problem);

struct ThinChoice {
  ThinForm form = ThinForm::kNone;  // of a product that is not thin
  bool many_is_a = false;           // kShallow: unless C is one row
  int few = 1;                      // lines that a kernel has sums of; not of kShallow
  int lanes = 32;                   // kAcrossK: threads side by side along lines
  int tile = 0, threads = 0;        // kShallow: of kShallowTiles, and of a block
  int turns = 1;                    // kAlongK: how often a block takes lines
  int cluster_blocks = 1;
  int64_t split_k = 1;
  int64_t k_per_block = 0;
};

// split_k: as it was when the program was lowered, or 0.
ThinChoice ChooseThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k);

// Shared memory of a block of kShallow, and how many of them an SM holds at once. The problem as
// the kernel makes it.
int ShallowSmemBytes(const SgemmProblem& problem, const ShallowTile& tile, int threads);
int ShallowBlocksPerSm(const SgemmProblem& problem, const DeviceLimits& limits,
                       const ShallowTile& tile, int threads);

// The product as kShallow makes it: of the transposes, in the same memory, where C is one row.
SgemmProblem WithManyRows(SgemmProblem problem);

// What it is expected to take for so many members of the batch, in the cycles of tile_choice.h.
double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t members);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_CHOICE_H_
