// The rules of rows of which nothing is kept: the tiers `block_uncached`, `spread` and `stream`,
// and row scalars that are read in leaves.
//
// Owns: constants and choices, each beside its measurement. Rows in shared memory: smem_rules.h.
//
// Measurements are of 2026-11, one a line: device, dtype, direction (fwd or grad, of softmax unless
// another is named), columns, what was compared. Numbers are fractions of the rate of a copy,
// unless the sentence above them says otherwise.
#ifndef JAXKERNELS_ROWS_LONG_ROW_RULES_H_
#define JAXKERNELS_ROWS_LONG_ROW_RULES_H_

#include <cstdint>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/host_device.h"
#include "rows/operations.h"

namespace jaxkernels {

// Registers a thread of block_uncached and stream may use.
inline constexpr int kLongRowRegisters = 64;
inline constexpr int kUncachedThreads = 1024;
// Row scalars of one input have a kernel of their own for that, tier_one_read.cuh, wherever rows
// begin. Fractions of the rate of a read, before and in leaves:
// H200 f32 logsumexp 32003 cols: cluster 0.78, 0.95
// H200 f32 logsumexp 50257 cols: cluster 0.87, 0.96
// H200 f32 logsumexp 262144 cols: block_uncached 0.98, 0.95
// H200 f32 logsumexp 400000 cols: block_uncached 0.82, 0.96
// H200 bf16 logsumexp 32003 cols: cluster 0.60, 0.83
// H200 bf16 logsumexp 50257 cols: cluster 0.79, 0.81
// H200 bf16 logsumexp 262144 cols: block_uncached 0.92, 0.92
// us a call of 64 in a program: H200 f32 logsumexp 1 x 131072: 24.9, 10.1
// us a call of 64 in a program: H200 f32 logsumexp 4 x 128256: 30.0, 7.0
// us a call of 64 in a program: H200 bf16 logsumexp 4 x 128256: 17.0, 10.4
// Packs that a lane has in flight, the most leaves of a row, registers, the most warps of a block
// and blocks of a row. Fractions of the rate of a read, 2^30 bytes; before, losses took the tiers
// that logsumexp had:
// H200 bf16 loss 50257 cols: cluster 0.53, in leaves 0.83
// H200 bf16 loss 128256 cols: block_uncached 0.73, in leaves 0.91
// H200 f32 loss 50257 cols: cluster 0.70, in leaves 0.92
// H200 bf16 loss 128256 cols, all sums: 64 registers 0.33, 80 registers 0.73
// H200 bf16 loss 32000 cols: 1, 2, 4, 8 warps 0.87, 0.87, 0.83, 0.69
// H200 bf16 loss 128256 cols: 1, 2, 3, 4, 8 warps 0.81, 0.89, 0.91, 0.89, 0.88
// H200 f32 loss 262144 cols: 1, 2, 3, 4, 8 warps 0.69, 0.95, 0.96, 0.82, 0.96
// us a call, 1 x 128256, before and in 8 blocks: bf16 loss 17.7, 5.1; f32 loss 23.6, 5.9
constexpr bool IsReadInLeaves(Operation operation) {
  return Reduces(operation) && !StoresElements(operation) && InputsOf(operation) == 1;
}
inline constexpr int kOneReadPacks = 8;
inline constexpr int kOneReadRegisters = 80;
inline constexpr int kMostReadLeaves = 256;
inline constexpr int kMostReadWarps = 8;
// Where few rows have all blocks that they may have, a block has more, up to one for each leaf. us
// a call in a captured graph over inputs in turn: H200 f32 loss 1, 8 x 128256: 8 warps 5.06, 5.80,
// 16 warps 4.65, 5.39
inline constexpr int kMostReadWarpsOfFew = 16;
// What a row costs a block besides its turns, in halves of one: with it WarpsForLeaves finds the
// best warps above, or nearly so.
inline constexpr int kReadHalfTurnsOfRow = 3;
inline constexpr int kMostReadBlocks = kPortableClusterBlocks;
// Row scalars need one read where maximum and sums are found together, and nothing that keeps the
// row. Without leaves, rows that begin within a pack do better in shared memory. Of logsumexp, TB/s
// read:
// H200 f32 65536 cols: block_uncached 4.18, cluster 3.69
// H200 f32 32003 cols: block_uncached 2.47, block_smem 3.58, cluster 3.47
// H200 bf16 65536 cols: block_uncached 3.87, block_smem 2.73, cluster 3.34
// H200 bf16 32003 cols: block_uncached 2.21, block_smem 2.95, cluster 3.29
constexpr bool PrefersOneRead(Operation operation, bool aligned) {
  return !StoresElements(operation) && (aligned || IsReadInLeaves(operation));
}
// Several blocks an SM for what is read once, so that some load while others end. TB/s read:
// H200 f32 logsumexp 65536 cols: 1024 threads 3.19, 256 threads 4.18
constexpr int UncachedThreads(Operation operation) {
  return StoresElements(operation) ? kUncachedThreads : 256;
}
inline constexpr int kUncachedPacksInFlight = 4;   // of a thread, over all inputs
inline constexpr int kLeastGatheringThreads = 32;  // where it serves rows of shifted inputs
// The tier `stream`, of the parts of an operation: threads of a block, packs that a thread has in
// flight over all inputs, lanes that share a short row, and the packs of a row up to which those
// lanes, or a warp, serve it instead of a block. Statistics of log-softmax:
// H200 bf16 256 cols (32 packs): a warp 0.28, 8 lanes 0.88
// H200 bf16 4096 cols (512 packs): a block 0.42, a warp 0.99
// H200 bf16 32768 cols (4096 packs): a block 0.94
inline constexpr int kStreamThreads = 256;
inline constexpr int kStreamPacksInFlight = 4;
inline constexpr int kStreamLanes = 8;
// Packs of the part of a row, of all inputs, that a block makes results of. Parts of many rows were
// not measured against whole ones. us a call, 1 x 128256:
// H200 bf16 gradient of a loss: whole 14.6, parts 3.4
// H200 f32 gradient of a loss: whole 25.2, parts 3.3
inline constexpr int kStreamPartPacks = 1024;
inline constexpr int kMostPacksOfStreamingLanes = 64;
inline constexpr int kMostPacksOfStreamingWarp = 1024;
// The tier `spread`: warps of a block, which have a leaf each (leaf.cuh); the fewest packs of a
// leaf that a lane has; the most blocks that share a row. us a call:
// H200 f32 fwd 1 x 16777216: 512 blocks a row 76, 128 blocks a row 99
inline constexpr int kBranchLeaves = 8;
inline constexpr int kSpreadThreads = 32 * kBranchLeaves;
// The classes of a leaf (leaf.cuh) are as many registers for each sum.
constexpr bool MaySpread(Operation operation) {
  return Reduces(operation) && TraitsOf(operation).sums <= 2;
}
inline constexpr int kLeastLeafTurns = 8;
inline constexpr int kMostBranches = 512;
// Packs that a thread has in flight over all inputs where it finds statistics, and registers for
// them, with which hardly any kernel spills. Where as many packs of one input are in flight as the
// shortest leaf has, it is read once. us a call:
// H200 f32 fwd 128 x 1048576: 8 packs in 80 registers 400, in 64 390; 4 packs in 64 432
// H200 f32 fwd 64 x 1000003: 8 packs in 80 registers 216, in 64 211; 4 packs in 64 223
// H200 f32 fwd 64 x 1000003, gathered: 8 packs in 80 registers 321, in 64 297; 4 packs in 64 332
// H200 f32 logsumexp 128 x 1048576: 8 packs in 80 registers 122, in 64 122; 4 packs in 64 153
// H200 f32 grad 64 x 1048576: 8 packs in 80 registers 311, in 64 311; 4 packs in 64 311
// H200 bf16 fwd 64 x 2097152: 8 packs in 80 registers 202, in 64 199; 4 packs in 64 217
// H200 bf16 fwd 64 x 1000003: 8 packs in 80 registers 113, in 64 124
// H200 bf16 grad 64 x 1000003: 8 packs in 80 registers 156, in 64 187; 4 packs in 80 159
// H200 f64 fwd 64 x 524288, in 80 registers: 4 packs 233, 8 packs 222
// H200 f64 grad 32 x 400001, in 80 registers: 4 packs 129, 8 packs 139
constexpr bool ReadsOneArray(Operation operation) {
  return InputsOf(operation) == 1 && !HasMask(operation);
}
constexpr int SpreadPacksInFlight(Operation operation, int pack) {
  return IsPackOfDoubles(pack) || (IsPackOfHalves(pack) && !ReadsOneArray(operation)) ? 4 : 8;
}
constexpr int SpreadRegisters(Operation operation, int pack) {
  const bool is_float = !IsPackOfDoubles(pack) && !IsPackOfHalves(pack);
  return is_float && ReadsOneArray(operation) ? 64 : 80;
}
inline constexpr int kSpreadFinishPacksInFlight = 4;  // where it makes results
// Many rows are spread in one launch, whose blocks keep their branches (tier_spread_once.cuh),
// where all blocks together have so many rounds of branches at least. us a call, kernels alone, two
// launches, one:
// H200 f32 fwd 32, 128 x 1048576: two 105, 391; one 95, 336
// H200 f32 grad 16, 32, 128 x 1048576: two 82, 158, 613; one 66, 122, 452
// H200 f32 fwd, grad 345 x 777777: two 856, 1221; one 745, 997
// H200 bf16 fwd, grad 256 x 1048576: two 399, 614; one 321, 477
// H200 f64 fwd, grad 256 x 524288, while a block met twice a turn: two 934, 1204; one 871, 977
// Of 1048576 columns, zeros in rotating buffers, 2.6, 3.9 and 7.8 rounds (grad: 2.9, 3.9, 7.8):
// H200 f32 fwd 8, 12, 24 rows: two 32.0, 45.1, 83.3; one 33.4, 42.0, 71.5
// H200 f32 grad 3, 4, 8 rows: two 18.8, 24.8, 45.7; one 18.1, 22.0, 37.6
// H200 bf16 fwd 16, 24, 48 rows: two 31.9, 45.2, 83.5; one 32.8, 41.1, 70.3
// H200 bf16 grad 6, 8, 16 rows: two 19.2, 24.6, 47.1; one 19.7, 22.9, 39.3
inline constexpr int kLeastRoundsOfOnce = 3;
constexpr bool MaySpreadOnce(Operation operation) {
  return MaySpread(operation) && StoresElements(operation) && SharesRows(operation) &&
         !HidesElements(operation);
}
inline constexpr int kOnceTurns = kLeastLeafTurns;  // packs of each input in a lane's leaf
inline constexpr int kMostSpill = 8;                // lanes with an element past a leaf's last pack
inline constexpr int kOncePacks = kOnceTurns * kSpreadThreads + kBranchLeaves * kMostSpill;
// Branches of a block in shared memory, and its registers. us a call, kernels alone, in an earlier
// form of the kernel:
// H200 f32 fwd 256 x 1048576: 3 blocks an SM of two branches 680, 2 of three 701
// H200 bf16 fwd 256 x 1048576: 3 blocks an SM of two branches 333, 2 of three 334
// H200 f32 grad 256 x 1048576: 1 block an SM of three branches 986, of two 1126
JK_HOST_DEVICE constexpr int OnceStages(Operation operation) {
  return InputsOf(operation) == 2 ? 3 : 2;
}
constexpr int OnceRegisters(Operation operation) { return InputsOf(operation) == 2 ? 168 : 80; }
// When the first warp of a block publishes a branch: as soon as all leaves are reduced, before the
// block meets, or when it has met, while the others store. us a call, kernels alone, after, before;
// with one input simply after:
// H200 f32 fwd 256 x 1048576: 663, 692
// H200 bf16 fwd 256 x 1048576: 321, 311
// H200 f32 grad 256 x 1048576: 1016, 898
// H200 bf16 grad 256 x 1048576: 510, 477
JK_HOST_DEVICE constexpr bool PublishesEarly(Operation operation) {
  return InputsOf(operation) == 2;
}

// Rows of which an SM would hold one share of a cluster of 16 are spread too, where one array is
// read: clusters leave SMs idle then. So are row scalars, which need one read either way; they
// were not measured at these lengths. us a call:
// H200 f32 fwd 1, 16, 128 x 524288: cluster 13.6, 38.8, 224; spread 8.5, 30.4, 214
// H200 f32 fwd 1, 16, 107 x 627064: cluster 15.0, 44.1, 214; spread 9.0, 37.3, 222
// H200 f32 fwd 1, 16, 83 x 800000: cluster 17.3, 53.2, 215; spread 10.2, 46.2, 219
// H200 bf16 fwd 1, 16, 134 x 1000000: cluster 13.3, 37.6, 219; spread 8.2, 29.4, 215
// H200 f32 fwd 1, 16, 223 x 300000, two shares: cluster 10.2, 21.3, 167; spread 7.6, 20.8, 214
constexpr bool PrefersSpread(Operation operation, int pack, int cluster_blocks, int shares_per_sm) {
  return cluster_blocks > kPortableClusterBlocks && shares_per_sm == 1 && IsForward(operation) &&
         ReadsOneArray(operation) && !IsPackOfDoubles(pack);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_LONG_ROW_RULES_H_
