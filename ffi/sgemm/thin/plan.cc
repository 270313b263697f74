#include "sgemm/thin/plan.h"

#include <algorithm>

#include "sgemm/thin/choice.h"

namespace jaxkernels {
namespace {

// Elements of C that a thread stores at once: neighbours in a row, or in the only column.
int PackOfC(const SgemmProblem& problem, const SgemmPlan& plan) {
  if (plan.thin != ThinForm::kShallow) return 1;
  const int64_t neighbours = plan.many_is_a ? problem.m : problem.n;
  return problem.aligned_c && neighbours % kFloatsOfPack == 0 ? kFloatsOfPack : 1;
}

}  // namespace

void PlanThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
              SgemmPlan& plan) {
  const ThinChoice choice = ChooseThin(problem, limits, split_k);
  plan.thin = choice.form;
  plan.many_is_a = choice.many_is_a;
  plan.block_threads = kThinThreads;
  plan.cluster_blocks = choice.cluster_blocks;
  plan.split_k = static_cast<int>(choice.split_k);
  plan.k_per_split = choice.k_per_block * choice.cluster_blocks;
  const int pack_a = problem.HasAlignedRowsA() ? kFloatsOfPack : 1;
  const int pack_b = problem.HasAlignedRowsB() ? kFloatsOfPack : 1;
  int few = 0, many = 0, thread_few = 0, thread_many = 0;
  if (choice.form == ThinForm::kShallow) {
    many = kShallowColumns * choice.lanes;
    few = kThinThreads / choice.lanes * choice.rows;
    thread_many = kShallowColumns;
    thread_few = choice.rows;
    plan.block_k = ShallowDepth(problem.k, choice.lanes, choice.rows);
    plan.smem_bytes = ShallowSmemBytes(plan.block_k, choice.lanes, choice.rows);
    plan.pack_a = pack_a;
    plan.pack_b = pack_b;
  } else {
    const bool along_k = choice.form == ThinForm::kAlongK;
    thread_few = few = choice.few;
    thread_many = along_k ? choice.turns * kAlongLinesOfWarp : kAcrossLines;
    many = along_k ? choice.turns * kAlongLinesOfTurn : kAcrossLines * choice.lanes;
    plan.slices = along_k ? kAlongSlices : kThinThreads / choice.lanes;
    plan.block_k = along_k ? kAlongStepK : plan.slices;
    // A single line is read in packs beside those that lie along k; of more a thread loads floats.
    const bool in_packs = (choice.many_is_a ? pack_a : pack_b) > 1 &&
                          (!along_k || few > 1 || (problem.aligned_a && problem.aligned_b));
    (choice.many_is_a ? plan.pack_a : plan.pack_b) = in_packs ? kFloatsOfPack : 1;
  }
  plan.block_m = choice.many_is_a ? many : few;
  plan.block_n = choice.many_is_a ? few : many;
  plan.thread_m = choice.many_is_a ? thread_many : thread_few;
  plan.thread_n = choice.many_is_a ? thread_few : thread_many;
  plan.blocks_per_sm =
      std::min(kThinBlocksPerSm, limits.BlocksPerSm(kThinThreads, plan.smem_bytes));
  plan.pack_c = PackOfC(problem, plan);
}

}  // namespace jaxkernels
