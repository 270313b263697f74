// Chooses whether the rung `tensor` can run a product and how it splits k, and models its time.
//
// Owns: the limits of the rung, the split of k, and the cost model. Choices depend on m, n, k, the
// transposes and the device, with for_batch also on the batch. Must not know: CUDA, plans, other
// rungs.
#ifndef JAXKERNELS_SGEMM_TENSOR_CHOICE_H_
#define JAXKERNELS_SGEMM_TENSOR_CHOICE_H_

#include <cstdint>

#include "core/device_limits.h"
#include "sgemm/problem.h"
#include "sgemm/tensor/layout.h"

namespace jaxkernels {

// CanUseTensor tells whether the rung can run. It needs a GPU of compute capability 9.0, code with
// its instructions, 32 to 65536 k, and scratch within a bound. The bound is higher if the caller
// names the rung. split_k: its value when the program was lowered, or 0.
bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, bool by_name,
                  int split_k);

// SplitOfTensor returns the number of parts of a member's k, whose sums are added in order. It is
// above one only if all parts of a member run at once. No part is empty.
int64_t SplitOfTensor(const SgemmProblem& problem, const DeviceLimits& limits);

// GroupOfTensor returns the members that run at once: all of them, or a share of the outermost
// dimension. It is the largest share whose scratch is within the bound for calls that do not name
// the rung, or a 32nd if none is. The last group may have fewer members.
SgemmProblem GroupOfTensor(const SgemmProblem& problem, int64_t split_k);

// CyclesOfTensor estimates the time of `members` batch members, in the cycles of tile_choice.h.
double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members,
                      int64_t split_k);

// Sums of more k than this are compensated if a member has no more tiles, or parts of tiles, than
// the device has SMs. Other kernels would split k there, and have smaller errors. With many tiles
// compensation would cost a seventh of the speed.
// H200, uniform [0, 1), largest error, plain and compensated by force (2026-11):
// 1024^3 4.8e-7, 2.9e-7
// 4096^3 7.5e-7, 2.7e-7
// H200, all launches, us (2026-11): 4096^3 757, 860
inline constexpr int64_t kMaxDepthPlain = 1024;

// Parts of k may be twice as deep, because the addition of their sums is compensated.
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

// LaunchesOfRepairs returns the launches of the FFMA kernel that recomputes tiles. Each sums a part
// of k. With split-k that kernel does not run.
int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits);

// ScratchOf returns the layout of the scratch.
TensorScratch ScratchOf(const SgemmProblem& problem, int64_t split_k);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_CHOICE_H_
