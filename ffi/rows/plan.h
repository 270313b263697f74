// The policy of the row kernels: (problem, device limits) -> plan, made without a GPU.
//
// Owns: the rules and their constants, each beside its measurement, and the plan, a plain value
// that can be compared and printed. Which tier a row takes: plan.cc. Its lanes, threads, blocks and
// bytes there: tier_plans.cc. Must not know: CUDA, XLA, Python.
//
// The order in which a row is summed depends on cols, dtype, operation, device and where in a
// cache line the row begins (and whether its operands begin at one place of a pack), never on rows:
// a row gives the same bits however many stand behind it. In the tier `spread` it does not depend
// on where the row begins either.
//
// Measurements are of 2026-11, one a line: device, dtype, direction (fwd or grad, of softmax unless
// another is named), columns, what was compared. Numbers are fractions of the rate of a copy,
// unless the sentence above them says otherwise.
#ifndef JAXKERNELS_ROWS_PLAN_H_
#define JAXKERNELS_ROWS_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/fields.h"
#include "core/host_device.h"
#include "rows/operations.h"
#include "rows/row_batches.h"

namespace jaxkernels {

// A register layout of the warp tier: lanes per row, packs per lane, rows per access.
struct WarpShape {
  int lanes;
  int packs_per_lane;
  int rows_per_access;
};

// The layouts, in the order in which they are tried: the first that covers the row is taken. Two
// rows per access while a lane holds one pack of each, so that two loads are in flight.
// clang-format off
inline constexpr WarpShape kWarpShapes[] = {
    {1, 1, 2},  {2, 1, 2},  {4, 1, 2},  {8, 1, 2},  {16, 1, 2},  {2, 4, 1},  {4, 4, 1},
    {8, 4, 1},  {32, 1, 2}, {16, 4, 1}, {16, 8, 1}, {32, 2, 1},  {32, 3, 1}, {32, 4, 1},
    {32, 6, 1}, {32, 8, 1}, {32, 12, 1}, {32, 16, 1},
};
// clang-format on
inline constexpr int kWarpShapeCount = sizeof(kWarpShapes) / sizeof(kWarpShapes[0]);

// Registers of row data that a lane may hold, in the compute type. With more the warp tier loses to
// block_smem, 2^28 elements:
// H200 f32 fwd 2048 cols, 64 registers: warp 0.98, block_smem 0.97
// H200 bf16 fwd 2048 cols, 64 registers: warp 1.08, block_smem 0.98
// H200 f32 grad 1536 cols, 96 registers: warp 0.97, block_smem 1.01
// H200 bf16 grad 2048 cols, 128 registers: warp 0.88, block_smem 1.02
// H200 f64 fwd 577 cols, 48 registers: warp 0.94
// H200 f64 fwd 1000 cols, 64 registers: warp 0.56, block_smem 0.89
constexpr int WarpMaxRowRegisters(int pack) { return IsPackOfDoubles(pack) ? 48 : 64; }
// Less than a warp with several packs a lane is for rows that cost as much as some packs besides
// their elements, so that a warp pays it for several rows at once. Attention scores do, half a warp
// each: finding out what a row sees costs that much. Row scalars do: they write nearly nothing, and
// so have half the time of other operations.
constexpr bool WarpShapeFits(const WarpShape& shape, const OperationTraits& traits, int pack,
                             bool aligned) {
  const int registers_per_value = IsPackOfDoubles(pack) ? 2 : 1;
  const bool fits = shape.packs_per_lane * pack * registers_per_value * traits.inputs <=
                    WarpMaxRowRegisters(pack);
  if (shape.lanes < 32) {
    const bool is_deep = shape.packs_per_lane > 1;
    if (traits.stores_scalar && shape.packs_per_lane != 4 && shape.lanes > 2) return false;
    if (is_deep && !traits.stores_scalar && !(traits.hides && shape.lanes == 16)) return false;
  }
  return fits && (aligned || shape.lanes == 32);  // short misaligned rows are staged
}

// Words of 4 bytes that hold the mask of a pack, a byte for each element.
JK_HOST_DEVICE constexpr int MaskWords(int pack) { return (pack + 3) / 4; }
// What aligned rows read of a mask at once, at most.
inline constexpr int kMostMaskBytes = 4 * MaskWords(kPackBytes / 2);

inline constexpr int kWarpTierThreads = 128;
// Short rows are staged where the layouts above do badly: rows that begin within a pack, and
// aligned ones that leave much of their layout empty. Threads of a block; bytes of each input that
// a warp moves together, or up to twice as many: H200 f32 fwd 65 cols: 2 KiB 0.89, 4 KiB 0.96, 8
// KiB 0.90 H200 f32 grad 129 cols: 2 KiB 0.95, 4 KiB 1.01, 8 KiB 0.99 H200 bf16 fwd 17 cols, fewer
// elements a lane: 2 KiB 0.75, 4 KiB 0.81, 8 KiB 0.69
inline constexpr int kStagedTierThreads = 128;
inline constexpr int kStagedChunkBytes = 4 * 1024;
// Elements of a row that a lane holds, at most: the more, the more of them share what a row costs.
// H200 bf16 fwd 17 cols: 4 lanes 0.81, 2 lanes 0.97
// H200 bf16 fwd 129 cols: 32 lanes 0.80, 16 lanes 0.92
constexpr int MostStagedElements(int pack) { return IsPackOfDoubles(pack) ? 8 : 16; }
// The longest rows that are staged.
// H200 f32 fwd 333 cols: a warp's registers 0.86, staged 0.96
// H200 f32 grad 255, 333 cols: a warp's registers 0.99, 0.98; staged 0.99, 0.95
// H200 bf16 grad 257, 401 cols: a warp's registers 0.70, 0.93; staged 1.01 (300 cols), 0.94
constexpr int MostStagedCols(int pack, int inputs) {
  return 32 * MostStagedElements(pack) / (IsPackOfHalves(pack) ? 1 : inputs);
}
// Whether aligned rows are staged, of so many packs, for which the layout `shape` was found:
// softmax and log-softmax that fill less than three quarters of up to two packs a lane. Doubles
// were not measured. H200 f32 fwd 36, 136, 200 cols: registers 0.77, 0.80, 0.94; staged 0.95, 0.95,
// 0.98 H200 f32 fwd 264 cols, three packs a lane: registers 0.97, staged 0.92 H200 bf16 fwd 72,
// 136, 264 cols: registers 0.80, 0.77, 0.82; staged 0.97, 0.95, 0.97
constexpr bool PrefersStaged(const OperationTraits& traits, int pack, int64_t packs,
                             const WarpShape& shape) {
  const int layout_packs = shape.lanes * shape.packs_per_lane;
  const bool is_softmax =
      traits.inputs == 1 && !traits.hides && !traits.takes_scalar && !traits.stores_scalar;
  return is_softmax && !IsPackOfDoubles(pack) && layout_packs <= 64 && 4 * packs < 3 * layout_packs;
}
// Whether any row takes a layout of the warp tier: no earlier layout holds as much, and some of its
// rows are not staged. Others are not compiled.
constexpr bool IsWarpShapeTaken(int index, Operation operation, int pack, bool aligned) {
  const OperationTraits& traits = TraitsOf(operation);
  const WarpShape& shape = kWarpShapes[index];
  if (!WarpShapeFits(shape, traits, pack, aligned)) return false;
  const int packs = shape.lanes * shape.packs_per_lane;
  for (int i = 0; i < index; ++i) {
    const WarpShape& earlier = kWarpShapes[i];
    if (earlier.lanes * earlier.packs_per_lane >= packs &&
        WarpShapeFits(earlier, traits, pack, aligned)) {
      return false;
    }
  }
  const bool may_stage = !aligned && traits.shares_rows;
  return !may_stage || packs * pack > MostStagedCols(pack, traits.inputs);
}
// Lanes that share a staged row, the fewest that hold it, and elements that each has of it. There
// are kernels for even numbers of them.
constexpr int StagedRowLanes(int64_t cols, int pack) {
  int lanes = 1;
  while (lanes * MostStagedElements(pack) < cols) lanes *= 2;
  return lanes;
}
constexpr int StagedElements(int64_t cols, int pack) {
  const int64_t row_lanes = 2 * StagedRowLanes(cols, pack);
  return 2 * std::max(static_cast<int>((cols + row_lanes - 1) / row_lanes), 1);
}
// How far apart the rows are that a warp computes at once: 1, 2, 4 or 8, so that the fewest of its
// lanes meet in a bank of shared memory.
// H200 bf16 fwd 65, 127, 33 cols, neighbouring rows: 0.65, 0.71, 0.82
constexpr int StagedRowSpacing(int64_t cols, int pack, int64_t rows) {
  constexpr int kBanks = 32, kBankBytes = 4;
  const int lanes = StagedRowLanes(cols, pack), row_groups = 32 / lanes;
  int best = 1, fewest = 33;
  for (int spacing = 1; spacing <= 8 && spacing * row_groups <= rows; spacing *= 2) {
    int64_t word_of[32] = {};
    int meeting = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int64_t element = lane / lanes * spacing * cols + lane % lanes;
      word_of[lane] = element * (kPackBytes / pack) / kBankBytes;
      int others = 0;  // words of this bank that lanes before it read
      for (int other = 0; other < lane; ++other) {
        const bool same_bank = word_of[other] % kBanks == word_of[lane] % kBanks;
        others += same_bank && word_of[other] != word_of[lane] ? 1 : 0;
      }
      meeting = std::max(meeting, others);
    }
    if (meeting < fewest) best = spacing, fewest = meeting;
  }
  return best;
}
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
// The tier `block`: packs of all inputs together that a thread holds, threads at most, and
// registers of a thread, as few as hold the packs: the more rows are under way on an SM, the fewer
// of its cycles pass without a load in flight. Time over that of a copy, masked and causal scores,
// 32 waves of blocks that walk rows, but for the last lines (a block for each row, as here):
// H200 bf16 8192 cols: 4 packs in 64 registers 1.12, 1.13
// H200 bf16 8192 cols: 4 packs in 40 or 48 registers 1.09, 1.10
// H200 bf16 8192 cols: 8 packs in 64 or 80 registers 1.09, 1.08
// H200 bf16 8192 cols: a block for each row 1.07, 1.07
// H200 f32 8192 cols: 4 packs in 64 registers 1.20, 1.31
// H200 f32 8192 cols: 4 packs in 40 or 48 registers 1.10, 1.10
// H200 f32 8192 cols: 8 packs in 64 or 80 registers 1.10, 1.10
// H200 f32 8192 cols: a block for each row 1.08, 1.07
inline constexpr int kBlockPacks = 8;
inline constexpr int kMostBlockThreads = 512;
constexpr int BlockRegisters(int pack) { return IsPackOfHalves(pack) ? 80 : 64; }
// Rows that are too long for a warp go to the tier `block` if an SM holds so many of them, and
// longer ones to shared memory, likewise.
// H200 bf16 fwd 3072 cols: block 1.01, block_smem 0.98
// H200 bf16 fwd 24576 cols: block 0.97, block_smem 0.93
// H200 bf16 grad 3072 cols: block 1.05, block_smem 1.01
// H200 f32 16384 cols: block 0.99, block_smem 0.96
// H200 bf16 32768 cols, one row an SM: block 0.78, block_smem 0.96
// H200 bf16 masked scores 16384 cols, time over that of a copy: block 1.03, block_smem 1.18
// H200 f32 masked scores 8192 cols, time over that of a copy: block 1.08, block_smem 1.13
inline constexpr int kLeastRowsOfBlocks = 2;
// Three kinds of rows go to shared memory all the same, because they are faster there: log-softmax,
// which needs its input after its terms, so that registers spill; exponentials of doubles, which
// spill likewise; and rows that begin within a pack, except short ones of softmax, and scores.
// H200 f32 log-softmax 8192 cols: block 0.78, block_smem 0.98
// H200 f64 fwd 1024, 2048, 4096 cols: block 0.89, 0.87, 0.86; block_smem 0.90, 0.96, 0.97
// H200 f32 fwd 2049, 3003, 9001 cols: block 0.98, 0.97, 0.96; block_smem 0.77, 0.90, 0.94
// H200 f32 fwd 12289, 16001 cols: block 0.94, 0.95; block_smem 0.94, 0.94
// H200 bf16 fwd 2049, 3003, 5121 cols: block 0.78, 0.98, 0.98; block_smem 0.62, 0.75, 0.85
// H200 bf16 fwd 8191, 9001 cols: block 0.92, 0.95; block_smem 0.97, 0.96
// H200 bf16 grad of scores 12289 cols: block 0.61, block_smem 1.04
constexpr bool PrefersBlock(Operation operation, int pack, bool aligned, int64_t cols) {
  const bool stores_terms = IsForward(operation) && !StoresScalar(operation);
  if (IsPackOfDoubles(pack) && stores_terms) return false;
  if (HasMask(operation)) return true;
  if (operation == Operation::kLogSoftmaxForward) return false;
  const int64_t most_misaligned = IsPackOfHalves(pack) ? 6144 : 12288;
  return aligned || (operation == Operation::kSoftmaxForward && cols <= most_misaligned);
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
// H200 bf16 grad 64 x 1000003: 8 packs in 80 registers 156, in 64 187; 4 packs in 64 158
// float64: as many as do not spill; not measured.
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

struct SoftmaxPlan {
  Part part = Part::kWhole;
  Tier tier = Tier::kAuto;
  int pack = 0;               // elements moved by one 16-byte access
  bool aligned = false;       // every row of every array begins at a pack boundary
  bool on_packs = true;       // all arrays of the result's shape begin at a pack boundary
  int offset = 0;             // elements of a pack before the first row of the result
  bool staged = false;        // short misaligned rows in the warp tier, through shared memory
  int warp_shape = -1;        // index into kWarpShapes; warp tier only
  int lanes = 0;              // threads that share a row
  int packs_per_lane = 0;     // capacity; warp and block tiers only
  int kept_packs = 0;         // of each input, that a block keeps in shared memory, or has room for
  int rows_per_access = 1;    // rows that a group of lanes (staged: a warp) moves together
  int elements_per_lane = 0;  // of a row, capacity; staged rows only
  int row_spacing = 0;        // of the rows that a warp computes at once; staged rows only
  int cluster_blocks = 1;     // blocks that share a row
  int leaf_turns = 0;         // packs of a leaf that a lane has; spread only
  int branches = 0;           // blocks that share a row; spread only
  int64_t scratch_bytes = 0;  // of all rows; spread only
  int block_threads = 0;
  int64_t grid_blocks = 0;
  RowBatches batches;     // which block or cluster takes which rows; block_smem and cluster only
  int smem_bytes = 0;     // dynamic shared memory of one block
  int blocks_per_sm = 0;  // resident at once, by threads, shared memory and registers, of which
                          // `warp` is counted with 32

  static constexpr const char* kName = "SoftmaxPlan";
  template <typename Self>
  static auto FieldsOf(Self& self) {
    return std::tuple(
        Field("part", self.part, self.part != Part::kWhole), Field("tier", self.tier),
        Field("pack", self.pack), Field("aligned", self.aligned), Field("on_packs", self.on_packs),
        Field("offset", self.offset), Field("staged", self.staged),
        Field("warp_shape", self.warp_shape, false), Field("lanes", self.lanes),
        Field("packs_per_lane", self.packs_per_lane), Field("kept_packs", self.kept_packs),
        Field("rows_per_access", self.rows_per_access),
        Field("elements_per_lane", self.elements_per_lane, false),
        Field("row_spacing", self.row_spacing, false), Field("cluster_blocks", self.cluster_blocks),
        Field("leaf_turns", self.leaf_turns, false), Field("branches", self.branches, false),
        Field("scratch_bytes", self.scratch_bytes, false),
        Field("block_threads", self.block_threads), Field("grid_blocks", self.grid_blocks),
        Field("workers", self.batches.workers), Field("rounds", self.batches.rounds),
        Field("halves", self.batches.halves), Field("smem_bytes", self.smem_bytes),
        Field("blocks_per_sm", self.blocks_per_sm));
  }
};

// Packs that the window of a row can need: rows begin at multiples of gcd(cols, pack) within a
// pack, behind the offset of the first.
constexpr int64_t MaxPacksOfRow(int64_t cols, int pack, int offset = 0) {
  const int64_t step = std::gcd<int64_t>(std::gcd<int64_t>(cols, pack), offset);
  return (cols + (pack - step) + pack - 1) / pack;
}

// Slots for the packs of a row in the shared memory of each of `blocks` blocks, in whole lines: a
// window may begin up to seven packs before the row, at a cache line.
constexpr int64_t SmemSlots(int64_t row_packs, int blocks) {
  constexpr int kLine = kSmemLineBytes / kPackBytes;
  return (row_packs + kLine - 1 + kLine * blocks - 1) / (kLine * blocks) * kLine;
}

// What a plan is made for.
struct SoftmaxProblem {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kFloat32;
  Operation operation = Operation::kSoftmaxForward;
  Tier tier = Tier::kAuto;  // kAuto lets the policy choose
  Part part = Part::kWhole;
  int offset = 0;        // elements of a pack before the result (else the first input) begins
  bool shifted = false;  // an input of its shape begins elsewhere within a pack: it is gathered
  bool broadcast_aligned = true;      // a mask and a bias begin at a pack boundary
  int64_t scratch_bytes = INT64_MAX;  // that the call has for the tier `spread`
};

// A plan, or why there is none.
struct SoftmaxPlanResult {
  SoftmaxPlan plan;
  std::string error;
};

SoftmaxPlanResult PlanSoftmax(const SoftmaxProblem& problem, const DeviceLimits& limits);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_PLAN_H_
