// Launch rules for rows in shared memory: the tiers `block_smem` and `cluster`, and the schedule of
// rows over blocks.
//
// Owns: constants and choices, each with its measurement. register_rules.h has the rules for
// registers, long_row_rules.h those for rows that are not kept on chip, and HasTwoSums, which these
// tiers use too. Sections and measurements are as in register_rules.h: constants of kernels take a
// dtype only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/host_device.h"
#include "rows/operations.h"

namespace jaxkernels {

// ---- Constants of kernels ----

// Registers per thread of block_smem and cluster, and packs of each input that a thread holds in
// them. Half types are faster with more threads, unless registers spill, as they would in gradients
// of unaligned rows.
// H200 f32 32768 cols: 512 threads (128 registers, 48 for packs) 0.80, 1024 (64, 16) 0.91
// H200 bf16 fwd 131072 cols: 4 packs in 64 registers 0.94, 3 in 56 0.95
// H200 bf16 fwd 524288 cols: 4 packs in 64 registers 0.85, 3 in 56 0.88
constexpr int SmemRegisters(DType dtype, int inputs) {
  constexpr ByDType<int> kOfOne = {.float32 = 64, .bfloat16 = 56, .float16 = 56, .float64 = 64};
  return inputs == 2 ? 64 : kOfOne[dtype];
}
JK_HOST_DEVICE constexpr int SmemHeldPacks(DType dtype, int inputs) {
  constexpr ByDType<int> kOfOne = {.float32 = 4, .bfloat16 = 3, .float16 = 3, .float64 = 4};
  return inputs == 2 ? 2 : kOfOne[dtype];
}
inline constexpr int kMostSmemThreads = 1024;
// FewRowsKernel keeps few rows of block_smem and cluster in registers, with twice the threads
// (tier_few_rows.cuh). The constants are packs per thread, all inputs together, and registers per
// thread.
inline constexpr int kFewRowsPacks = 8;
inline constexpr int kFewRowsRegisters = 64;
// Attention scores hardly ever have few rows. Doubles would need twice the registers. Operations
// that store only row scalars mostly keep nothing of a row.
constexpr bool HasFewRowsLayout(Operation operation, DType dtype) {
  return SharesRows(operation) && !HidesElements(operation) && StoresElements(operation) &&
         !IsDouble(dtype);
}
// Whether 2 * threads threads can hold a block's share of a row, of `slots` packs, in registers.
constexpr bool FitsFewRowsLayout(Operation operation, DType dtype, int64_t slots, int threads) {
  return HasFewRowsLayout(operation, dtype) && 2 * threads <= kMostSmemThreads &&
         slots <= int64_t{2} * threads * (kFewRowsPacks / InputsOf(operation));
}
// Bytes of a line of the 32 banks of shared memory: block_smem and cluster store each input from
// the beginning of a line.
inline constexpr int kSmemLineBytes = 128;
JK_HOST_DEVICE constexpr int WholeSmemLines(int bytes) {
  return (bytes + kSmemLineBytes - 1) / kSmemLineBytes * kSmemLineBytes;
}

// Bytes of the statistics of a row or a part of it.
constexpr int StatisticsBytes(Operation operation, DType dtype) {
  const int sums = SumsOf(TraitsOf(operation), dtype);
  const int rests = KeepsRest(TraitsOf(operation), dtype) ? sums : 0;
  return (1 + sums + rests) * ComputeWidth(dtype);
}

// Whether warp 0 computes the row constants and leaves them in shared memory (LedShare, kLedNumbers
// values) for the waiting warps. Otherwise each warp computes them for itself. 2^30 elements,
// without and with this:
// H200 bf16 loss with gradient 262144 cols: 0.92, 0.97
// H200 f32 loss with gradient 262144 cols: 0.93, 0.96
constexpr bool IsLed(Operation operation) {
  return TraitsOf(operation).TakesLabel() && StoresElements(operation) && Reduces(operation);
}
inline constexpr int kLedNumbers = 20;

// Shared memory of the reductions. Block reductions (reduce.cuh) need two buffers of 32 sums.
// Cluster exchanges (cluster.cuh) need two buffers of the statistics of 16 blocks, in words of 8
// bytes, and one barrier per buffer.
constexpr int ReductionScratchBytes(Operation operation, DType dtype) {
  const int sums = SumsOf(TraitsOf(operation), dtype);
  const int statistics_bytes = (StatisticsBytes(operation, dtype) + 7) / 8 * 8;
  const int led_numbers = IsLed(operation) ? kLedNumbers : 0;
  return WholeSmemLines(2 * (32 * sums * ComputeWidth(dtype) + 16 * statistics_bytes) + 2 * 8 +
                        led_numbers * ComputeWidth(dtype));
}

// ---- Thresholds of plans ----

// Rows are few if all of them run at once; if an SM holds three or more blocks, the limit is 1.5
// times that. us per call in a captured graph with rotating inputs; "4 of 256" means 4 blocks of
// 256 threads per row, doubled for few rows:
// H200 f32 fwd 1, 16, 64 x 24576, 4 of 256: many 6.3, 6.8, 9.2; few 4.1, 4.8, 7.2
// H200 f32 fwd 1, 8, 16 x 128256, 8 of 640: many 7.5, 8.4, 11.2; few 6.1, 7.4, 13.5
// H200 f32 grad 1, 16, 64 x 24413, 8 of 256: many 3.9, 4.8, 8.4; few 3.0, 4.2, 7.3
// H200 bf16 fwd 1, 16, 64 x 50257, 4 of 256: many 7.2, 7.3, 9.8; few 5.1, 5.6, 8.3
// H200 bf16 fwd 1, 128, 256 x 26000, 1 of 576: many 6.6, 8.8, 12.9; few 5.2, 7.8, 13.6
// H200 bf16 fwd 128 x 50257, 4 of 256: many 13.9, few 11.8
constexpr int64_t MostFewRows(int64_t at_once, int blocks_per_sm) {
  return blocks_per_sm > 2 ? at_once * 3 / 2 : at_once;
}
// Minimum threads per block. A block that has a row alone gets more if each thread still has six
// packs, which is faster with few rows. Other types, gradients and other GPUs were not measured.
// 2^28 bytes, 2^30 bytes, and us per call of one row:
// H200 bf16 fwd 12288 cols: 128 threads 0.94, 0.97, 5.2; 256 threads 0.93, 0.97, 3.9
// H200 bf16 fwd 20001 cols: 224 threads 0.93, 0.96, 6.7; 256 threads 0.94, 0.96, 6.1
inline constexpr int kLeastSmemThreads = 128;
inline constexpr int kPacksOfThreadAlone = 6;
inline constexpr ByArch<int> kLeastSmemThreadsAlone = {.hopper = 256};
constexpr int LeastSmemThreads(Arch arch, int64_t row_packs, int blocks) {
  if (blocks > 1) return kLeastSmemThreads;
  const int64_t whole_warps = row_packs / kPacksOfThreadAlone / 32 * 32;
  return static_cast<int>(
      std::clamp<int64_t>(whole_warps, kLeastSmemThreads, kLeastSmemThreadsAlone[arch]));
}
// Tier `cluster`: a row has the fewest blocks such that an SM holds LeastSharesOfCluster of them.
// While the blocks of one row wait for each other, the SM works on other rows, and few rows reach
// many SMs. Float64, with the slowest arithmetic, is faster with fewer blocks or one. More than 8
// blocks are used only if an SM would hold fewer than three of 8: larger clusters fit less well
// into a GPC of 16 or 18 SMs, and GPUs differ. Blocks per row (and per SM), 2^28 bytes, 2^30 bytes,
// and us per call of one row:
// H200 f32 fwd 24576 cols: 1 (2) 0.91, 0.96, 7.2; 4 (8) 0.91, 0.95, 6.2; 8 (8) 0.91, 0.94, 4.4
// H200 f32 fwd 32000 cols: 4 (6) 0.88, 0.95, 6.5; 8 (8) 0.93, 0.96, 4.8
// H200 f32 fwd 131072 cols: 8 (3) 0.86, 0.92, 7.6; 16 (6) 0.89, 0.93, 7.0
// H200 f32 grad 97035 cols: 8 (2) 0.98, 1.01, 5.9; 16 (4) 0.98, 1.01, 5.1
// H200 bf16 fwd 56720 cols: 1 (2) 0.89, 0.96, 8.7; 8 (9) 0.91, 0.95, 4.6
// H200 bf16 fwd 393216 cols: 8 (2) 0.79, 0.89, 9.3; 16 (4) 0.85, 0.91, 7.5
// Another H200, f32 fwd 131072 cols, static schedule: 8 (3) 0.91, 16 (6) 0.77
// 2^28 bytes, static schedule:
// H200 f64 fwd 8192 cols: 1 (3) 0.93, 2 (6) 0.88
// H200 f64 fwd 32768 cols: 4 (3) 0.77, 8 (6) 0.81, 9 (7) 0.82
// Losses with their gradients have a higher fixed cost per row, so they are faster with fewer
// blocks. 2^30 elements, the better of static schedule and batches:
// H200 f32 loss with gradient 50257 cols: 8 (8) 0.98, 4 (4) 0.98, 2 (2) 0.99
// H200 bf16 loss with gradient 128256 cols: 8 (6) 0.95, 4 (3) 0.99, 2 (1) 0.87
inline constexpr int kClusterBlocks[] = {2, 4, 8, 16};  // powers of two, for ClusterIndex
inline constexpr ByArch<ByDType<int>> kLeastShares = {
    .hopper = {.float32 = 8, .bfloat16 = 8, .float16 = 8, .float64 = 4}};
inline constexpr ByArch<ByDType<int>> kLeastSharesOfLosses = {
    .hopper = {.float32 = 2, .bfloat16 = 3, .float16 = 3, .float64 = 4}};
constexpr int LeastSharesOfCluster(Operation operation, Arch arch, DType dtype) {
  return (TraitsOf(operation).TakesLabel() ? kLeastSharesOfLosses : kLeastShares)[arch][dtype];
}
inline constexpr ByArch<int> kLeastSharesOfPortableCluster = {.hopper = 3};
// A row stays in one block if an SM holds at least LeastRowsAlone rows. Four blocks of 256 threads
// use all registers of an SM. Blocks per row (and per SM), and numbers, as above:
// H200 f32 fwd 12001 cols: 1 (4) 0.93, 0.96, 6.3; 2 (8) 0.90, 0.96, 6.6
// H200 bf16 fwd 20001 cols: 1 (5) 0.93, 0.96, 6.7; 2 (9) 0.91, 0.96, 6.3
// 2^30 elements:
// H200 bf16 loss with gradient 32000 cols: 1 (3) 1.03, 2 (6) 1.02, 4 (9) 0.97
// H200 bf16 loss with gradient 50257 cols: 1 (2) 0.98, 2 (4) 1.02, 4 (8) 0.97
inline constexpr ByArch<ByDType<int>> kLeastRowsAlone = {
    .hopper = {.float32 = 4, .bfloat16 = 4, .float16 = 4, .float64 = 2}};
inline constexpr ByArch<ByDType<int>> kLeastLossesAlone = {
    .hopper = {.float32 = 2, .bfloat16 = 3, .float16 = 3, .float64 = 2}};
constexpr int LeastRowsAlone(Operation operation, Arch arch, DType dtype) {
  return (TraitsOf(operation).TakesLabel() ? kLeastLossesAlone : kLeastRowsAlone)[arch][dtype];
}
inline constexpr int kWaves = 32;
// Blocks and clusters are scheduled in one of two ways (row_batches.h). Static schedule ("turns"):
// kWaves waves start in the order of the rows, so that concurrent rows lie close together, but each
// block idles until its first row arrives. Batches: few blocks start, each for several rows, but
// they drift apart. So batches are used for few rounds of rows. They are also used if an SM holds
// few shares and so idles while one waits, or, in forward operations, if a row has more than 8
// blocks. Rows of one block use the static schedule, except forward rows that fill an SM. Attention
// scores were not measured.
// 12 rounds (19 with 32000 columns), blocks per row (and per SM):
// H200 f32 fwd 32000 cols, 8 (8): turns 0.85, batches 0.93
// H200 f32 fwd 131072 cols, 8 (3): turns 0.83, batches 0.87
// 24 rounds:
// H200 f32 grad 97035 cols, 16 (4): turns 0.96, batches 0.98
// H200 f32 grad 200000 cols, 16 (2): turns 0.89, batches 0.97
// H200 bf16 grad 262144 cols, 16 (3): turns 0.95, batches 0.98
// 46 rounds and more:
// H200 f32 fwd 32000 cols, 8 (8): turns 0.96, batches 0.95
// H200 f32 fwd 196608 cols, 8 (2): turns 0.87, batches 0.90
// H200 f32 fwd 24576 cols, alone (2): turns 0.96, batches 0.93
// H200 f32 fwd 32000 cols, alone (1): turns 0.89, batches 0.93
// H200 f32 grad 131072 cols, 16 (3): turns 1.01, batches 0.99
// H200 f32 grad 131072 cols, 8 (1): turns 0.97, batches 0.98
// H200 bf16 fwd 393216 cols, 16 (4): turns 0.88, batches 0.91
// H200 bf16 grad 128256 cols, 8 (3): turns 1.01, batches 0.98
// Losses with their gradients, 2^30 elements:
// H200 f32 loss with gradient 32000 cols, 2 (3): turns 1.02, batches 0.99
// H200 f32 loss with gradient 128256 cols, 8 (3): turns 0.99, batches 1.01
// H200 bf16 loss with gradient 50257 cols, 2 (4): turns 1.02, batches 0.98
// H200 bf16 loss with gradient 128256 cols, 4 (3): turns 0.97, batches 0.99
// 12 to 19 rounds:
// H200 f64 fwd 65536 cols, 8 (3): turns 0.77, batches 0.77
// H200 f64 fwd 128256 cols, 8 (1): turns 0.51, batches 0.57
// Minimum rounds of a static schedule.
inline constexpr ByArch<ByDType<int>> kLeastRoundsOfTurns = {
    .hopper = {.float32 = 32, .bfloat16 = 32, .float16 = 32, .float64 = 0}};
// Maximum blocks per SM for batches of more rounds: gradients and rows of two blocks; other rows.
inline constexpr ByArch<ByDType<int>> kMostSharesInBatches = {
    .hopper = {.float32 = 2, .bfloat16 = 2, .float16 = 2, .float64 = 1}};
inline constexpr ByArch<ByDType<int>> kMostForwardSharesInBatches = {
    .hopper = {.float32 = 3, .bfloat16 = 3, .float16 = 3, .float64 = 1}};
// Maximum blocks of a forward row with a static schedule.
inline constexpr ByArch<ByDType<int>> kMostBlocksInTurns = {
    .hopper = {.float32 = 8, .bfloat16 = 8, .float16 = 8, .float64 = 16}};
constexpr bool TakesRowsInBatches(Operation operation, Arch arch, DType dtype, int blocks_of_row,
                                  int blocks_per_sm, int64_t rounds) {
  if (blocks_of_row == 1) return FindsMax(operation) && blocks_per_sm == 1;
  if (rounds < kLeastRoundsOfTurns[arch][dtype]) return true;
  if (!FindsMax(operation) || blocks_of_row == 2) {
    return blocks_per_sm <= kMostSharesInBatches[arch][dtype];
  }
  return blocks_per_sm <= kMostForwardSharesInBatches[arch][dtype] ||
         blocks_of_row > kMostBlocksInTurns[arch][dtype];
}
// Workers per batch: about the number that run at once. A cluster must lie within a GPC of 16 or 18
// SMs, which leaves kPartInGpcs of the capacity.
// H200 clusters of 16 blocks, 3 per SM: 21 by this rule, 21 as CUDA counts, 24 without GPCs
// H200 clusters of 8 blocks, 3 per SM: 43 by this rule, 45 as CUDA counts, 49 without GPCs
// H200 f32 grad 262144 cols: one cluster too many 0.94, this rule 0.95
inline constexpr ByArch<double> kPartInGpcs = {.hopper = 7.0 / 8};
constexpr int64_t WorkersAtOnce(Arch arch, int sm_count, int blocks_of_row, int blocks_per_sm) {
  const double part = blocks_of_row == 1 ? 1 : kPartInGpcs[arch];
  const auto blocks = static_cast<int64_t>(part * sm_count * blocks_per_sm);
  return std::max<int64_t>(blocks / blocks_of_row, 1);
}

}  // namespace jaxkernels
