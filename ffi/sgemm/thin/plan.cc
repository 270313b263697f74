#include "sgemm/thin/plan.h"

#include <algorithm>

#include "sgemm/thin/choice.h"

namespace jaxkernels {
namespace {

// StoresWholeLines tells whether pack stores write whole 128-byte lines at a time, or with the
// widest tile a whole row. (A thread stores its first four columns before the others.) Otherwise it
// is faster to exchange sums and to store floats.
// us, packs and floats (H100, CUDA graphs, 2026-11):
// {8, 8, 8} (53607, 140, 34) 47.1 38.7
// {8, 8, 8} (53608, 60, 8) 26.5 9.1
// {8, 8, 8} (53608, 300, 16) 89.0 38.1
// {8, 8, 8} (8192, 1000, 32) 44.5 24.2
// {8, 8, 8} (65536, 64, 64) 21.5 22.0, both with other copies
// {16, 4, 8} (4096, 4100, 8) 41.0 29.4
// {16, 4, 8} (53608, 72, 34) 23.6 24.9
// {16, 4, 8} (53608, 192, 16) 24.7 28.7
// {4, 4, 8} (65536, 32, 64) 18.3 14.1
// {4, 4, 8} (65536, 32, 64) TN 16.8 13.1
bool StoresWholeLines(const ShallowTile& tile, int64_t n) {
  if (tile.columns == kFloatsOfPack) return true;
  return tile.lanes >= 8 && (n % 32 == 0 || (tile.lanes == 16 && n <= tile.Columns()));
}

// PlanShallow sets the fields of kShallow.
void PlanShallow(const SgemmProblem& problem, const DeviceLimits& limits, const ThinChoice& choice,
                 SgemmPlan& plan) {
  const SgemmProblem made = WithManyRows(problem);
  const ShallowTile& tile = kShallowTiles[choice.tile];
  const int rows = choice.threads / 32 * tile.RowsOfWarp();
  plan.tile = choice.tile;
  plan.block_threads = choice.threads;
  plan.block_m = choice.many_is_a ? rows : tile.Columns();
  plan.block_n = choice.many_is_a ? tile.Columns() : rows;
  plan.block_k = ShallowStageDepth(!made.trans_a);
  plan.thread_m = choice.many_is_a ? tile.rows : tile.columns;
  plan.thread_n = choice.many_is_a ? tile.columns : tile.rows;
  plan.smem_bytes = ShallowSmemBytes(made, tile, choice.threads);
  plan.stages = plan.smem_bytes / ShallowSmemBytes(tile, choice.threads, 1, !made.trans_a);
  plan.blocks_per_sm = ShallowBlocksPerSm(made, limits, tile, choice.threads);
  plan.pack_a = problem.HasAlignedRowsA() ? kFloatsOfPack : 1;
  plan.pack_b = problem.HasAlignedRowsB() ? kFloatsOfPack : 1;
  plan.pack_c = choice.many_is_a && problem.HasAlignedRowsC() && StoresWholeLines(tile, problem.n)
                    ? kFloatsOfPack
                    : 1;
}

// PlanFewLines sets the fields of kAlongK and kAcrossK, whose blocks may share k.
void PlanFewLines(const SgemmProblem& problem, const DeviceLimits& limits, const ThinChoice& choice,
                  SgemmPlan& plan) {
  const bool along_k = choice.form == ThinForm::kAlongK;
  const int few = choice.few;
  const int thread_many = along_k ? choice.turns * kAlongLinesOfWarp : kAcrossLines;
  const int many = along_k ? choice.turns * kAlongLinesOfTurn : kAcrossLines * choice.lanes;
  plan.block_threads = kThinThreads;
  plan.slices = along_k ? kAlongSlices : kThinThreads / choice.lanes;
  plan.block_k = along_k ? kAlongStepK : plan.slices;
  plan.block_m = choice.many_is_a ? many : few;
  plan.block_n = choice.many_is_a ? few : many;
  plan.thread_m = choice.many_is_a ? thread_many : few;
  plan.thread_n = choice.many_is_a ? few : thread_many;
  plan.blocks_per_sm =
      std::min(kThinBlocksPerSm, limits.BlocksPerSm(kThinThreads, plan.smem_bytes));
  // A single short-side line is read in packs with a K-major long side, so both need alignment.
  // Several lines are loaded float by float.
  const bool has_packs = choice.many_is_a ? problem.HasAlignedRowsA() : problem.HasAlignedRowsB();
  const bool in_packs =
      has_packs && (!along_k || few > 1 || (problem.aligned_a && problem.aligned_b));
  (choice.many_is_a ? plan.pack_a : plan.pack_b) = in_packs ? kFloatsOfPack : 1;
}

}  // namespace

void PlanThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
              SgemmPlan& plan) {
  const ThinChoice choice = ChooseThin(problem, limits, split_k);
  plan.thin = choice.form;
  plan.many_is_a = choice.many_is_a;
  plan.cluster_blocks = choice.cluster_blocks;
  plan.split_k = static_cast<int>(choice.split_k);
  plan.k_per_split = choice.k_per_block * choice.cluster_blocks;
  if (choice.form == ThinForm::kShallow) {
    PlanShallow(problem, limits, choice, plan);
  } else {
    PlanFewLines(problem, limits, choice, plan);
  }
}

}  // namespace jaxkernels
