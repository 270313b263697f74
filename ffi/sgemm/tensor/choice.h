// Whether the rung `tensor` serves a product, how it splits its k, and what that takes.
//
// Owns: its limits, the split of k, the model of its times. What it chooses follows from m, n, k,
// the transposes and the device; where the problem says for_batch from the batch too. Must not
// know: CUDA, plans, other rungs.
#ifndef JAXKERNELS_SGEMM_TENSOR_CHOICE_H_
#define JAXKERNELS_SGEMM_TENSOR_CHOICE_H_

#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/problem.h"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// Whether it can: it needs a GPU of compute capability 9.0, code with its instructions, 32 to 65536
// of k, and scratch within a bound, which is higher where it is asked for by name. split_k: as it
// was when the program was lowered, or 0.
bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k);

// Into how many parts a member's k is split, whose sums are added in order: more than one only
// where all parts of a member run at once. None of them is empty.
int64_t SplitOfTensor(const SgemmProblem& problem, const DeviceLimits& limits);

// As many members of the batch as are made at once: all of them, or a share of the outermost
// dimension, the largest whose scratch is within the bound of who does not ask; where none is, a
// 32nd. The last share may have fewer.
SgemmProblem GroupOfTensor(const SgemmProblem& problem, int64_t split_k);

// What it is expected to take for so many members of the batch, in the cycles of tile_choice.h.
double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members,
                      int64_t split_k);

// Sums of more k than this are compensated where a member has no more tiles, or parts of tiles,
// than the device has SMs: other kernels would split k there, and err less for it. For many tiles
// it would cost a seventh of the speed.
// H200, uniform [0, 1), largest error, plain and compensated by force (2026-11):
// 1024^3 4.8e-7, 2.9e-7
// 4096^3 7.5e-7, 2.7e-7
// H200, all launches, us (2026-11): 4096^3 757, 860
inline constexpr int64_t kMaxDepthPlain = 1024;

// Parts of k may be twice as deep: their sums are added with what they lose.
// H200, parts of up to 2048 of k, plain, largest error, uniform, lognormal and normal with
// outliers, and cuBLAS's (2026-11):
// (256, 256, 8192) 3.8e-7, 4.4e-7, 6.2e-7; 4.7e-7, 5.7e-7, 1.0e-6
// (308, 722, 14203) NT 3.4e-7, 4.2e-7, 4.7e-7; 1.0e-6, 1.1e-6, 3.0e-6
// (1024, 1024, 8192) 4.1e-7, 4.7e-7, 7.8e-7; 1.5e-6, 1.7e-6, 4.5e-6
// H200, plain and compensated, us (2026-11):
// (308, 722, 14203) NT, 6 parts a tile 87, 94
// (512, 512, 16384), 8 94, 99
inline constexpr int64_t kMaxDepthPlainPart = 2048;

bool IsCompensated(const SgemmProblem& problem, const DeviceLimits& limits, int64_t split_k);

// Launches of the FFMA kernel that makes tiles again, each of which sums a part of k. Where k is
// split it does not run.
int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits);

// What is kept in the scratch.
TensorScratch ScratchOf(const SgemmProblem& problem, int64_t split_k);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_CHOICE_H_
