// The policy of the row kernels: (problem, device limits) -> plan. Every launch rule lives in this
// file.
//
// Owns: which tier runs, with how many lanes, packs, threads, blocks and bytes of shared memory. A
// plan is a plain value that can be compared and printed; it is made without a GPU. Must not know:
// CUDA, XLA, Python.
//
// Everything that decides in which order a row is summed depends on cols, dtype, operation, device
// and where in a cache line the row begins (and whether its operands begin at one place of a pack),
// never on rows: a row gives the same bits however many stand behind it.
#ifndef JAXKERNELS_ROWS_PLAN_H_
#define JAXKERNELS_ROWS_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/fields.h"
#include "core/host_device.h"
#include "rows/leaves.h"
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

// Registers of row data that a lane may hold, in the compute type; the warp tier ends there. H200,
// 2^28 elements, fraction of the copy rate, warp against block_smem (2026-11): 64 registers:
// float32 forward 2048 columns 0.98 to 0.97, bfloat16 forward 2048 columns 1.08 to 0.98; 96
// registers: float32 gradient 1536 columns 0.97 to 1.01; 128 registers: bfloat16 gradient 2048
// columns 0.88 to 1.02.
inline constexpr int kWarpMaxRowRegisters = 64;
// Less than a warp with several packs a lane is for rows that cost as much as some packs besides
// their elements, so that a warp pays it for several rows at once: attention scores, half a warp
// each, where finding out what a row sees costs that much; and row scalars, which write nearly
// nothing, and so have half the time of other operations.
constexpr bool WarpShapeFits(const WarpShape& shape, const OperationTraits& traits, int pack,
                             bool aligned) {
  const int registers_per_value = IsPackOfDoubles(pack) ? 2 : 1;
  const bool fits =
      shape.packs_per_lane * pack * registers_per_value * traits.inputs <= kWarpMaxRowRegisters;
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
inline constexpr int kStagedTierThreads = 64;
// Shared memory for the rows of one warp up to which misaligned rows are staged: rows of which one
// lane takes one, and rows that several lanes share.
// H200, float32, fraction of the aligned rate (2026-11):
//   192, 256 columns, shifted inputs: staged 0.23, 0.22; gathered 0.31, 0.39.
//   one element into a pack: 128, 160 columns, staged, 0.34, 0.32; 192, 256, not, 0.85, 0.85.
inline constexpr int kStagedWarpBytes = 24 * 1024;
inline constexpr int kSharedRowsWarpBytes = 16 * 1024;
// What 32 rows take there. on_packs: all arrays begin at a pack boundary.
constexpr int64_t StagedBytes(int64_t row_bytes, bool on_packs, int inputs) {
  return (32 * row_bytes + (on_packs ? 0 : kPackBytes)) * inputs;
}
// Whether any row takes a layout of the warp tier: none before it holds as much, and not all of its
// rows are staged. Others are not compiled.
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
  return !may_stage || StagedBytes(packs * kPackBytes, false, traits.inputs) > kStagedWarpBytes;
}
// Lanes that share a staged row: one, unless many of them would meet in a bank; then as many as
// have a group of elements each. H200, float32, 64 columns, one element into a pack, fraction of
// the aligned rate (2026-11): 32 lanes, half a group each, 0.28.
inline constexpr int kStagedGroup = 4;  // elements that a lane works on together
constexpr int StagedRowLanes(int64_t cols, int pack) {
  int lanes = 1;
  if (cols % pack != 0) return lanes;
  while (lanes < 32 && 2 * lanes * kStagedGroup <= cols) lanes *= 2;
  return lanes;
}
// Registers a thread of block_uncached and stream may use.
inline constexpr int kLongRowRegisters = 64;
// Registers of block_smem and cluster, and packs of each input that a thread holds in some of them.
// Half types do better with more threads, where that does not make registers spill (gradients of
// rows that begin within a pack would). H200, fraction of the copy rate (2026-11): float32, 32768
// columns, 48 registers of packs in 512 threads of 128 registers instead of 16 in 1024 of 64: 0.80
// against 0.91; bfloat16 forward, 4 packs in 64 registers and 3 in 56: 131072 columns 0.94 and
// 0.95, 524288 columns 0.85 and 0.88.
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
inline constexpr int kSmemLineBytes = kLinePacks * kPackBytes;
// The tier `block`: packs of all inputs together that a thread holds, threads at most, and
// registers of a thread, as few as hold the packs: the more rows are under way on an SM, the fewer
// of its cycles pass without a load in flight. H200, time over that of a copy, masked and causal
// scores (2026-11), with 32 waves of blocks that walk rows, and with a block for each row, as here:
//                            4 packs in 64   4 in 40 or 48   8 in 64 or 80   with a block for each
//   bfloat16, 8192 columns   1.12 and 1.13   1.09 and 1.10   1.09 and 1.08   1.07 and 1.07
//   float32, 8192 columns    1.20 and 1.31   1.10 and 1.10   1.10 and 1.10   1.08 and 1.07
inline constexpr int kBlockPacks = 8;
inline constexpr int kMostBlockThreads = 512;
constexpr int BlockRegisters(int pack) { return IsPackOfHalves(pack) ? 80 : 64; }
// Rows that are too long for a warp go to the tier `block` if an SM holds so many of them, and
// longer ones to shared memory, likewise. H200, block and block_smem (2026-11), fraction of the
// copy rate: softmax, bfloat16, 3072 columns 1.01 and 0.98, 24576 columns 0.97 and 0.93, its
// gradient, 3072 columns, 1.05 and 1.01; float32, 16384 columns, 0.99 and 0.96; one row an SM,
// bfloat16, 32768 columns, 0.78 and 0.96. Time over that of a copy, masked scores: bfloat16, 16384
// columns, 1.03 and 1.18; float32, 8192 columns, 1.08 and 1.13.
inline constexpr int kLeastRowsOfBlocks = 2;
// Two kinds of rows go to shared memory all the same, because they were slower: log-softmax, which
// needs its input after its terms, so that registers spill (float32, 8192 columns, 0.78 and 0.98),
// and, except forward on scores, rows that begin within a pack (gradient of scores, bfloat16, 12289
// columns, 0.61 and 1.04; why was not found out).
constexpr bool PrefersBlock(Operation operation, bool aligned) {
  return HasMask(operation) || (aligned && operation != Operation::kLogSoftmaxForward);
}
// The tier `cluster`: blocks that share a row, the fewest of which an SM holds
// kLeastSharesOfCluster; while those of one row wait for one another, it works on others. (Two are
// enough only for rows of other tiers, if this one is forced on them.) More than 8 blocks only
// where an SM would not hold two of 8: fewer of the larger clusters find room in a group of 16 or
// 18 SMs, and GPUs differ. H200, fraction of the copy rate, by turns (2026-11), blocks (and how
// many an SM holds): float32 forward, 50256 columns, 2 (2) 0.94, 4 (4) 0.96, 8 (8) 0.96; 65536
// columns, 4 (3) 0.94, 8 (6) 0.95; 131072 columns, 8 (3) 0.91 on two GPUs, 16 (6) 0.94 and 0.77;
// float32 gradient, 32768 columns, 4 (3) 1.00, 8 (6) 1.01; bfloat16 forward, 131072 columns, 4 (3)
// 0.94, 8 (6) 0.95. Rows of which all SMs of a cluster hold one, block_uncached and cluster, in
// batches: float32 forward, 524288 columns, 0.64 and 0.66, 800000 columns, 0.60 and 0.72; bfloat16
// forward, 1048576 columns, 0.65 both, 1600000 columns, 0.52 and 0.68.
inline constexpr int kClusterBlocks[] = {2, 4, 8, 16};
inline constexpr int kLeastSharesOfCluster = 4;
inline constexpr int kPortableClusterBlocks = 8;  // every GPU with clusters takes them unasked
// Whether to try a cluster of `blocks` where fewer give `blocks_per_sm`.
constexpr bool WantsMoreBlocks(int blocks, int blocks_per_sm, const DeviceLimits& limits) {
  const int wanted = blocks > kPortableClusterBlocks ? kLeastRowsOfBlocks : kLeastSharesOfCluster;
  return blocks <= limits.cluster_blocks && blocks_per_sm < wanted;
}
inline constexpr int kUncachedThreads = 1024;
// Row scalars need one read where maximum and sums are found together, and nothing that keeps the
// row. Rows that begin within a pack do better in shared memory.
// H200, logsumexp, read TB/s, block_uncached, block_smem and cluster (2026-11):
//   float32, 65536 columns 4.18, -, 3.69; 32003 columns 2.47, 3.58, 3.47.
//   bfloat16, 65536 columns 3.87, 2.73, 3.34; 32003 columns 2.21, 2.95, 3.29.
constexpr bool PrefersOneRead(Operation operation, bool aligned) {
  return StoresScalar(operation) && aligned;
}
// Several blocks an SM for what is read once, so that some load while others end.
// H200, logsumexp, float32, 65536 columns, read TB/s (2026-11): 1024 threads 3.19, 256
// threads 4.18.
constexpr int UncachedThreads(Operation operation) {
  return StoresScalar(operation) ? 256 : kUncachedThreads;
}
inline constexpr int kUncachedPacksInFlight = 4;   // of a thread, over all inputs
inline constexpr int kLeastGatheringThreads = 32;  // where it serves rows of shifted inputs
// The tier `stream`, of the parts of an operation: threads of a block, packs that a thread has in
// flight over all inputs, and the packs of a row up to which so many lanes of a warp serve it
// instead of a block. H200, statistics of log-softmax, bfloat16, fraction of the copy rate
// (2026-11): 4096 columns (512 packs), a block a row 0.42, a warp 0.99; 256 columns (32 packs), a
// warp a row 0.28, 8 lanes 0.88; 32768 columns (4096 packs), a block 0.94.
inline constexpr int kStreamThreads = 256;
inline constexpr int kStreamPacksInFlight = 4;
inline constexpr int kStreamLanes = 8;
inline constexpr int kMostPacksOfStreamingLanes = 64;
inline constexpr int kMostPacksOfStreamingWarp = 1024;
inline constexpr int kWaves = 32;
// Blocks and clusters take rows in one of two ways (row_batches.h). By fixed turns: kWaves waves of
// them start, in the order of the rows, so that what is under way lies close together; but each
// waits idly for its first row. In batches: few start, but they fall out of step. So batches are
// for where an SM holds few rows, and has little else to do while one waits, and, forward, for
// half types, whose arithmetic takes longest. H200, fraction of the copy rate, by turns and in
// batches (2026-11), blocks of a row (and how many an SM holds); forward, float32: 65536 columns, 8
// (6) 0.96 and 0.94; 98304, 8 (4) 0.93 both; 131072, 8 (3) 0.91 and 0.93; 196608, 8 (2) 0.86 and
// 0.90; 262144, 16 (3) 0.86 and 0.89; bfloat16: 131072, 8 (6) 0.90 and 0.93; 524288, 16 (3) 0.85
// and 0.89; 65536, alone (1) 0.81 and 0.90; gradients, float32: 131072, 16 (3) 1.02 and 1.00;
// 100000, 8 (2) 1.02 and 1.00; 262144, 16 (1) 0.88 and 0.95; 16384, alone (1) 1.01 and 1.00;
// bfloat16: 262144, 16 (3) 1.02 and 1.00; 393216, 16 (2) 0.95 and 1.00; 524288, 16 (1) 0.79 and
// 0.92. That is with 2^28 elements. With 2^30 turns have a second row to fetch ahead, and
// log-softmax of 8192 x 131072 bfloat16, 8 (6), took 1.06 ms, in batches, in another run, 1.09. Not
// measured: float64, scores.
constexpr bool TakesRowsInBatches(Operation operation, int pack, int blocks_of_row,
                                  int blocks_per_sm) {
  if (blocks_of_row == 1) return IsForward(operation) && blocks_per_sm == 1;
  if (IsForward(operation)) return IsPackOfHalves(pack) || blocks_per_sm <= 3;
  return blocks_per_sm <= 2;
}
// About as many workers share a batch as run at once. Clusters are fewer than their blocks would be
// alone, because each has to lie within a group of 16 or 18 SMs: an eighth of the room is lost.
// H200, clusters by this rule, as CUDA counts them, and if there were no groups: 16 blocks, 3 an
// SM, 21, 21 and 24; 1 an SM, 7, 7 and 8; 8 blocks, 3 an SM, 43, 45 and 49. One too many: float32
// gradient, 262144 columns, 0.94 instead of 0.95.
constexpr int64_t WorkersAtOnce(int sm_count, int blocks_of_row, int blocks_per_sm) {
  const int64_t blocks = int64_t{sm_count} * blocks_per_sm;
  const int64_t workers = blocks_of_row == 1 ? blocks : blocks * 7 / 8 / blocks_of_row;
  return std::max<int64_t>(workers, 1);
}

// The statistics of a leaf, in words of eight bytes (Statistics in row_ops.cuh).
JK_HOST_DEVICE constexpr int StatisticsBytes(int pack, int sums) {
  const int value_bytes = IsPackOfDoubles(pack) ? 8 : 4;
  return ((1 + sums) * value_bytes + 7) / 8 * 8;
}

struct SoftmaxPlan {
  Part part = Part::kWhole;
  Tier tier = Tier::kAuto;
  int pack = 0;             // elements moved by one 16-byte access
  bool aligned = false;     // every row of every array begins at a pack boundary
  bool on_packs = true;     // all arrays of the result's shape begin at a pack boundary
  int offset = 0;           // elements of a pack before the first row of the result
  bool staged = false;      // short misaligned rows in the warp tier, through shared memory
  int warp_shape = -1;      // index into kWarpShapes; warp tier only
  int lanes = 0;            // threads that share a row
  int packs_per_lane = 0;   // capacity; warp and block tiers only
  int kept_packs = 0;       // of each input, that a block keeps in shared memory
  int leaf_turns = 0;       // packs of a leaf that a lane has; rows longer than a warp holds
  int leaves = 0;           // of a row in each block; block_smem and cluster only
  int leaf_slots = 0;       // places for the packs of a leaf in shared memory
  int rows_per_access = 1;  // rows that a group of lanes (staged: a warp) moves together
  int cluster_blocks = 1;   // blocks that share a row
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
        Field("leaf_turns", self.leaf_turns), Field("leaves", self.leaves), Field("leaf_slots", self.leaf_slots),
        Field("rows_per_access", self.rows_per_access),
        Field("cluster_blocks", self.cluster_blocks), Field("block_threads", self.block_threads),
        Field("grid_blocks", self.grid_blocks), Field("workers", self.batches.workers),
        Field("rounds", self.batches.rounds), Field("halves", self.batches.halves),
        Field("smem_bytes", self.smem_bytes), Field("blocks_per_sm", self.blocks_per_sm));
  }
};

// Packs that the window of a row can need: rows begin at multiples of gcd(cols, pack) within a
// pack, behind the offset of the first.
constexpr int64_t MaxPacksOfRow(int64_t cols, int pack, int offset = 0) {
  const int64_t step = std::gcd<int64_t>(std::gcd<int64_t>(cols, pack), offset);
  return (cols + (pack - step) + pack - 1) / pack;
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
  bool broadcast_aligned = true;  // a mask and a bias begin at a pack boundary
};

// A plan, or why there is none.
struct SoftmaxPlanResult {
  SoftmaxPlan plan;
  std::string error;
};

SoftmaxPlanResult PlanSoftmax(const SoftmaxProblem& problem, const DeviceLimits& limits);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_PLAN_H_
