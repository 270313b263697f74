// The rules of rows that live in shared memory, or nowhere: the tiers `block_smem`, `cluster`,
// `block_uncached`, `spread` and `stream`, and the order in which blocks take rows.
//
// Owns: constants and choices, each beside its measurement. Rows in registers: register_rules.h.
//
// Measurements are of 2026-11, one a line: device, dtype, direction (fwd or grad, of softmax unless
// another is named), columns, what was compared. Numbers are fractions of the rate of a copy,
// unless the sentence above them says otherwise.
#ifndef JAXKERNELS_ROWS_MEMORY_RULES_H_
#define JAXKERNELS_ROWS_MEMORY_RULES_H_

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"
#include "rows/operations.h"

namespace jaxkernels {

// Registers a thread of block_uncached and stream may use.
inline constexpr int kLongRowRegisters = 64;
// Registers of block_smem and cluster, and packs of each input that a thread holds in some of them.
// Half types do better with more threads, where registers do not spill: those of gradients of rows
// that begin within a pack would.
// H200 f32 32768 cols: 48 registers of packs in 512 threads of 128 0.80, 16 in 1024 of 64 0.91
// H200 bf16 fwd 131072 cols: 4 packs in 64 registers 0.94, 3 in 56 0.95
// H200 bf16 fwd 524288 cols: 4 packs in 64 registers 0.85, 3 in 56 0.88
constexpr int SmemRegisters(int pack, int inputs) {
  return IsPackOfHalves(pack) && inputs == 1 ? 56 : 64;
}
JK_HOST_DEVICE constexpr int SmemHeldPacks(int pack, int inputs) {
  return inputs == 2 ? 2 : (IsPackOfHalves(pack) ? 3 : 4);
}
inline constexpr int kLeastSmemThreads = 128;
inline constexpr int kMostSmemThreads = 1024;
// A line of the shared memory's 32 banks: block_smem and cluster keep each input from the beginning
// of one.
inline constexpr int kSmemLineBytes = 128;
JK_HOST_DEVICE constexpr int WholeSmemLines(int bytes) {
  return (bytes + kSmemLineBytes - 1) / kSmemLineBytes * kSmemLineBytes;
}
// The tier `cluster`: blocks that share a row, the fewest of which an SM holds
// kLeastSharesOfCluster; while those of one row wait for one another, it works on others. (Two are
// enough only for rows of other tiers, if this one is forced on them.) More than 8 blocks only
// where an SM would not hold two of 8: fewer of the larger clusters find room in a group of 16 or
// 18 SMs, and GPUs differ. By turns, blocks (and how many an SM holds):
// H200 f32 fwd 50256 cols: 2 (2) 0.94, 4 (4) 0.96, 8 (8) 0.96
// H200 f32 fwd 65536 cols: 4 (3) 0.94, 8 (6) 0.95
// H200 f32 fwd 131072 cols, two GPUs: 8 (3) 0.91 on both, 16 (6) 0.94 and 0.77
// H200 f32 grad 32768 cols: 4 (3) 1.00, 8 (6) 1.01
// H200 bf16 fwd 131072 cols: 4 (3) 0.94, 8 (6) 0.95
// In batches, rows of which all SMs of a cluster hold one:
// H200 f32 fwd 524288 cols: block_uncached 0.64, cluster 0.66
// H200 f32 fwd 800000 cols: block_uncached 0.60, cluster 0.72
// H200 bf16 fwd 1048576 cols: block_uncached 0.65, cluster 0.65
// H200 bf16 fwd 1600000 cols: block_uncached 0.52, cluster 0.68
inline constexpr int kClusterBlocks[] = {2, 4, 8, 16};
inline constexpr int kLeastSharesOfCluster = 4;
inline constexpr int kPortableClusterBlocks = 8;  // every GPU with clusters takes them unasked
inline constexpr int kUncachedThreads = 1024;
// Row scalars need one read where maximum and sums are found together, and nothing that keeps the
// row. Rows that begin within a pack do better in shared memory. TB/s read:
// H200 f32 logsumexp 65536 cols: block_uncached 4.18, cluster 3.69
// H200 f32 logsumexp 32003 cols: block_uncached 2.47, block_smem 3.58, cluster 3.47
// H200 bf16 logsumexp 65536 cols: block_uncached 3.87, block_smem 2.73, cluster 3.34
// H200 bf16 logsumexp 32003 cols: block_uncached 2.21, block_smem 2.95, cluster 3.29
constexpr bool PrefersOneRead(Operation operation, bool aligned) {
  return StoresScalar(operation) && aligned;
}
// Several blocks an SM for what is read once, so that some load while others end. TB/s read:
// H200 f32 logsumexp 65536 cols: 1024 threads 3.19, 256 threads 4.18
constexpr int UncachedThreads(Operation operation) {
  return StoresScalar(operation) ? 256 : kUncachedThreads;
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
inline constexpr int kMostPacksOfStreamingLanes = 64;
inline constexpr int kMostPacksOfStreamingWarp = 1024;
// The tier `spread`: warps of a block, which have a leaf each (leaf.cuh); the fewest packs of a
// leaf that a lane has; the most blocks that share a row. us a call:
// H200 f32 fwd 1 x 16777216: 512 blocks a row 76, 128 blocks a row 99
inline constexpr int kBranchLeaves = 8;
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
inline constexpr int kWaves = 32;
// Blocks and clusters take rows in one of two ways (row_batches.h). By fixed turns: kWaves waves of
// them start, in the order of the rows, so that what is under way lies close together; but each
// waits idly for its first row. In batches: few start, but they fall out of step. So batches are
// for where an SM holds few rows, and has little else to do while one waits, and, forward, for
// half types, whose arithmetic takes longest. Not measured: float64, scores.
// 2^28 elements, blocks of a row (and how many an SM holds):
// H200 f32 fwd 65536 cols, 8 (6): turns 0.96, batches 0.94
// H200 f32 fwd 98304 cols, 8 (4): turns 0.93, batches 0.93
// H200 f32 fwd 131072 cols, 8 (3): turns 0.91, batches 0.93
// H200 f32 fwd 196608 cols, 8 (2): turns 0.86, batches 0.90
// H200 f32 fwd 262144 cols, 16 (3): turns 0.86, batches 0.89
// H200 bf16 fwd 131072 cols, 8 (6): turns 0.90, batches 0.93
// H200 bf16 fwd 524288 cols, 16 (3): turns 0.85, batches 0.89
// H200 bf16 fwd 65536 cols, alone (1): turns 0.81, batches 0.90
// H200 f32 grad 131072 cols, 16 (3): turns 1.02, batches 1.00
// H200 f32 grad 100000 cols, 8 (2): turns 1.02, batches 1.00
// H200 f32 grad 262144 cols, 16 (1): turns 0.88, batches 0.95
// H200 f32 grad 16384 cols, alone (1): turns 1.01, batches 1.00
// H200 bf16 grad 262144 cols, 16 (3): turns 1.02, batches 1.00
// H200 bf16 grad 393216 cols, 16 (2): turns 0.95, batches 1.00
// H200 bf16 grad 524288 cols, 16 (1): turns 0.79, batches 0.92
// 2^30 elements, where turns have a second row to fetch ahead; ms, in two runs:
// H200 bf16 log-softmax 8192 x 131072, 8 (6): turns 1.06, batches 1.09
constexpr bool TakesRowsInBatches(Operation operation, int pack, int blocks_of_row,
                                  int blocks_per_sm) {
  if (blocks_of_row == 1) return IsForward(operation) && blocks_per_sm == 1;
  if (IsForward(operation)) return IsPackOfHalves(pack) || blocks_per_sm <= 3;
  return blocks_per_sm <= 2;
}
// About as many workers share a batch as run at once. Clusters are fewer than their blocks would be
// alone, because each has to lie within a group of 16 or 18 SMs: an eighth of the room is lost.
// H200 clusters of 16 blocks, 3 an SM: 21 by this rule, 21 as CUDA counts, 24 without groups
// H200 clusters of 16 blocks, 1 an SM: 7 by this rule, 7 as CUDA counts, 8 without groups
// H200 clusters of 8 blocks, 3 an SM: 43 by this rule, 45 as CUDA counts, 49 without groups
// H200 f32 grad 262144 cols: one cluster too many 0.94, this rule 0.95
constexpr int64_t WorkersAtOnce(int sm_count, int blocks_of_row, int blocks_per_sm) {
  const int64_t blocks = int64_t{sm_count} * blocks_per_sm;
  const int64_t workers = blocks_of_row == 1 ? blocks : blocks * 7 / 8 / blocks_of_row;
  return std::max<int64_t>(workers, 1);
}

// The statistics of a row, or of a part of one, in words of eight bytes.
JK_HOST_DEVICE constexpr int StatisticsBytes(int pack, int sums) {
  const int value_bytes = IsPackOfDoubles(pack) ? 8 : 4;
  return ((1 + sums) * value_bytes + 7) / 8 * 8;
}

// Scratch of the reductions. Those of a block (reduce.cuh) take two lines of 32 sums. Those of a
// cluster (cluster.cuh) take two lines of the statistics of 16 blocks, in words of eight bytes, and
// a barrier for each line.
JK_HOST_DEVICE constexpr int ReductionScratchBytes(int pack, int sums) {
  const int value_bytes = IsPackOfDoubles(pack) ? 8 : 4;
  return WholeSmemLines(2 * (32 * sums * value_bytes + 16 * StatisticsBytes(pack, sums)) + 2 * 8);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_MEMORY_RULES_H_
