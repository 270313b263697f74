// Launch rules for rows that are not kept on chip: the tiers `block_uncached` and `stream`, and the
// single-pass kernel for row scalars (tier_one_read.cuh).
//
// Owns: constants and choices, each with its measurement. smem_rules.h has the rules for shared
// memory. Sections and measurements are as in register_rules.h; nothing depends on a dtype.
#pragma once

#include <cstdint>

#include "core/device_limits.h"
#include "rows/operations.h"

namespace jaxkernels {

// ---- Constants of kernels ----

// Maximum packs of a row. Kernels count packs in 32 bits and stride past the end of a row:
// OneReadKernel by up to a leaf, of 2^23 packs in the longest rows; RowFinishKernel, which rounds
// the row up to the lanes of its parts, by up to half of the row.
inline constexpr int64_t kMostPacksOfRow = INT32_MAX - (1 << 23);
inline constexpr int64_t kMostPacksOfStreamedRow = INT32_MAX / 2;

// Register cap per thread of block_uncached and stream.
inline constexpr int kLongRowRegisters = 64;
inline constexpr int kUncachedThreads = 1024;
// Operations that reduce one input to row scalars use the single-pass kernel of tier_one_read.cuh.
// It cuts a row into leaves, each read by one warp. Fractions of the read rate, before and so:
// H200 f32 logsumexp 32003 cols: cluster 0.78, 0.95
// H200 f32 logsumexp 400000 cols: block_uncached 0.82, 0.96
// H200 bf16 logsumexp 32003 cols: cluster 0.60, 0.83
// H200 bf16 logsumexp 262144 cols: block_uncached 0.92, 0.92
// us a call of 64 in a program: H200 f32 logsumexp 4 x 128256: 30.0, 7.0
// The constants are: packs in flight per lane, registers per thread, maximum leaves per row; below,
// maximum warps per block and blocks per row. Fractions of the read rate, 2^30 bytes; before,
// losses used the same tiers as logsumexp:
// H200 bf16 loss 128256 cols: block_uncached 0.73, in leaves 0.91
// H200 bf16 loss 128256 cols, all sums: 64 registers 0.33, 80 registers 0.73
// H200 bf16 loss 128256 cols: 1, 2, 3, 4, 8 warps 0.81, 0.89, 0.91, 0.89, 0.88
// H200 f32 loss 262144 cols: 1, 2, 3, 4, 8 warps 0.69, 0.95, 0.96, 0.82, 0.96
// us a call, 1 x 128256, before and in 8 blocks: bf16 loss 17.7, 5.1; f32 loss 23.6, 5.9
constexpr bool IsReadInLeaves(Operation operation) {
  return Reduces(operation) && !StoresElements(operation) && InputsOf(operation) == 1;
}
inline constexpr int kOneReadPacks = 8;
inline constexpr int kOneReadRegisters = 80;
inline constexpr int kMostReadLeaves = 256;
// Static shared memory of a block: the statistics of each leaf, and a barrier.
constexpr int ReadSmemBytes(int leaf_bytes) { return kMostReadLeaves * leaf_bytes + 8; }
// Whether the kernels of a tier have a variant for losses that need two sums only. Rows in
// registers and parts have none: their kernels test at run time.
constexpr bool HasTwoSums(Operation operation, Tier tier) {
  if (!TraitsOf(operation).TakesLabel() || !Reduces(operation)) return false;
  if (IsReadInLeaves(operation)) return tier == Tier::kBlockUncached;
  return tier == Tier::kBlockSmem || tier == Tier::kCluster;
}
inline constexpr int kUncachedPacksInFlight = 4;  // per thread, all inputs together
// Tier `stream`: threads per block; packs in flight per thread, all inputs together; lanes per
// short row.
inline constexpr int kStreamThreads = 256;
inline constexpr int kStreamPacksInFlight = 4;
inline constexpr int kStreamLanes = 8;

// ---- Thresholds of plans ----

inline constexpr ByArch<int> kMostReadWarps = {.hopper = 8};
// Maximum warps per block if each row already has kMostReadBlocks blocks (few rows): up to one warp
// per leaf. us per call in a captured graph with rotating inputs:
// H200 f32 loss 1, 8 x 128256: 8 warps 5.06, 5.80, 16 warps 4.65, 5.39
inline constexpr ByArch<int> kMostReadWarpsOfFew = {.hopper = 16};
// Fixed cost of a row per block, in half iterations. With this value WarpsForLeaves finds the best
// number of warps above, or nearly so.
inline constexpr ByArch<int> kReadHalfTurnsOfRow = {.hopper = 3};
inline constexpr int kMostReadBlocks = kPortableClusterBlocks;
inline constexpr int kLeastGatheringThreads = 32;  // for gathered inputs
// Packs per block, all inputs together, when the results of a long row are split over blocks.
// Splitting was not measured with many rows. us per call, 1 x 128256:
// H200 bf16 gradient of a loss: whole 14.6, parts 3.4
// H200 f32 gradient of a loss: whole 25.2, parts 3.3
inline constexpr ByArch<int> kStreamPartPacks = {.hopper = 1024};
// Maximum packs per row for kStreamLanes lanes, and for a warp, instead of a block. Statistics of
// log-softmax:
// H200 bf16 256 cols (32 packs): a warp 0.28, 8 lanes 0.88
// H200 bf16 4096 cols (512 packs): a block 0.42, a warp 0.99
// H200 bf16 32768 cols (4096 packs): a block 0.94
inline constexpr ByArch<int> kMostPacksOfStreamingLanes = {.hopper = 64};
inline constexpr ByArch<int> kMostPacksOfStreamingWarp = {.hopper = 1024};
// Whether a program uses XLA's own operation by default for rows that no tier can keep on chip.
// XLA splits such a row over several blocks. Losses run here, because XLA would store their terms.
// us per call, softmax, in a program of up to 10 calls:
// H200 f32 fwd 1, 16, 128 x 1048576: block_uncached 267, 282, 443; XLA 13.6, 75.8, 529
// H200 bf16 fwd 1, 64 x 2097152: block_uncached 231, 326; XLA 13.3, 334
constexpr bool LeavesLongRows(Operation operation) {
  return !IsReadInLeaves(operation) && !TraitsOf(operation).TakesLabel();
}

}  // namespace jaxkernels
