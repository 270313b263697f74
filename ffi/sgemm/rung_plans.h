// The plan of each rung and its cost model: defined in pipelined/plan.cc, thin/plan.cc (with
// small_k_plan.cc) and tensor/plan.cc. plan.cc defines RungOf, which chooses the rung by them.
// WithPadding (plan.h) is also defined in pipelined/plan.cc.
//
// Owns: this interface. Estimates of time are in cycles of an SM and only rank choices. Rates were
// fitted to an H200; those of its memory are scaled to other GPUs (DeviceLimits::MemoryRate), those
// of the L2 and launches, in cycles, are not. plan.h says what the order of summation depends on.
// Tiles and engines also depend on the batch, and on whether rows start at 16-byte boundaries.
// `split_k` is its value when the program was lowered, or 0. Must not know: CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// RungOf returns the rung that runs if `asked` is requested. `thin` falls back to `pipelined` if k
// is not small and both sides are long. `tensor` falls back if it cannot run (CanUseTensor). The
// batch decides whether the scratch of `tensor` fits, but not whether `tensor` is faster, unless
// the problem sets for_batch.
Algorithm RungOf(const SgemmProblem& problem, const DeviceLimits& limits, Algorithm asked,
                 int split_k = 0);

// SetTile sets the fields that every tile has. Requires: plan.smem_bytes, which blocks_per_sm
// depends on.
template <typename Tile>
void SetTile(const Tile& tile, int block_k, const DeviceLimits& limits, SgemmPlan& plan) {
  plan.block_m = tile.block_m;
  plan.block_n = tile.block_n;
  plan.block_k = block_k;
  plan.thread_m = tile.thread_m;
  plan.thread_n = tile.thread_n;
  plan.block_threads = tile.Threads();
  plan.blocks_per_sm =
      std::min(tile.blocks_per_sm, limits.BlocksPerSm(tile.Threads(), plan.smem_bytes));
}

// ---- pipelined ----

inline constexpr int64_t kMaxSplit = 1024;

// A thread's sum over more than kMaxDepthOfLaunch k is made by launches of at most kDepthOfLaunch
// k, which each add a part to C. This keeps the error small: rounding errors grow with the square
// root of the number of terms. H200, 8192^3 (2026-11): relF (the relative error in the Frobenius
// norm) is 1.6e-6 in one launch, where cuBLAS has 9.4e-7.
inline constexpr int64_t kMaxDepthOfLaunch = 4096;
inline constexpr int64_t kDepthOfLaunch = 2816;

// KPerSplit returns the k of each of `split_k` parts; the last one may have less.
int64_t KPerSplit(int64_t k, int64_t split_k);

// CyclesOfPipelined estimates the time of `batch_count` batch members of a large product,
// CyclesOfPipelinedIfThin that of a product that `thin` can run.
double CyclesOfPipelined(const SgemmProblem& problem, const DeviceLimits& limits,
                         int64_t batch_count);
double CyclesOfPipelinedIfThin(const SgemmProblem& problem, const DeviceLimits& limits,
                               int64_t batch_count);

void PlanPipelined(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                   SgemmPlan& plan);

// PlanRepairs plans the recomputation of the 128 x 128 tiles of the rung `tensor`. It does not
// split k: tiles are many, or few of them are recomputed. If `tensor` compensates its sums, each
// launch sums little k.
void PlanRepairs(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan);

// ---- thin ----

// IsThin tells whether any form serves: k is small (the limit is higher if one side has few lines),
// or one side has very few lines.
bool IsThin(const SgemmProblem& problem);

// SumsInOrder tells whether each element is one chain of FFMA in the order of k. The pipelined rung
// also sums up to 64 k in this order, because it neither splits nor slices them.
bool SumsInOrder(const SgemmProblem& problem);

double CyclesOfThin(SgemmProblem problem, const DeviceLimits& limits, int64_t batch_count);

// PlanThin sets the fields that depend on the form. The grid is that of any rung.
void PlanThin(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
              SgemmPlan& plan);

// ---- tensor ----

// CanUseTensor tells whether the rung can run. It needs a GPU of compute capability 9.0, code with
// its instructions, 32 to 65536 k, and scratch within a bound. The bound is higher if the caller
// names the rung.
bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k);

// SplitOfTensor returns the number of parts of k, whose sums are added in order. It is above one
// only if all parts of a batch member run at once. No part is empty.
int64_t SplitOfTensor(const SgemmProblem& problem, const DeviceLimits& limits);

double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t batch_count,
                      int64_t split_k);

// LaunchesOfRepairs returns the launches of the FFMA kernel that recomputes tiles. Each sums a part
// of k. With split-k that kernel does not run.
int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits);

// PlanTensor sets the fields that do not depend on the number of tiles of C. It returns the problem
// of the batch members that run at once; the rest of the plan is made for that.
SgemmProblem PlanTensor(const SgemmProblem& problem, const DeviceLimits& limits, int split_k,
                        SgemmPlan& plan);

// FinishTensorPlan sets the other fields, once tiles and grid are set as for any rung.
void FinishTensorPlan(const SgemmProblem& problem, const DeviceLimits& limits, SgemmPlan& plan);

}  // namespace jaxkernels
