// Launch rules for rows in registers: the tier `warp`, staged or not, and the tier `block`.
//
// Owns: constants and choices, each with its measurement. smem_rules.h has the rules for shared
// memory, long_row_rules.h those for longer rows. The first section has the constants of kernels,
// which are template arguments, register caps or sizes that kernels share with plans: they take a
// dtype only, as one kernel serves all GPUs. The second has the thresholds of plans, which kernels
// do not call: those that a GPU can change take its Arch.
//
// Each measurement (2026-11) is one line: device, dtype, direction (fwd or grad; softmax unless
// another operation is named), columns, variants. Numbers are fractions of the copy rate, unless
// the sentence above them says otherwise.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/host_device.h"
#include "rows/operations.h"

namespace jaxkernels {

// ---- Constants of kernels ----

// A register layout of the warp tier: lanes per row, packs per lane, rows per access.
struct WarpShape {
  int lanes;
  int packs_per_lane;
  int rows_per_access;
};

// Layouts in the order of trial: the first that covers the row is used. Layouts with one pack per
// lane have two rows per access, so that two loads are in flight. Lanes as an argument of the
// kernel would save 70 of 580 kernels of a dtype. Time of such kernels relative to these:
// H200 f32 log-softmax 8, 32, 64, 1024 cols: 1.19, 1.16, 1.14, 1.08
// H200 bf16 log-sum-exp 8, 16, 32 cols: 1.32, 1.20, 1.11
// clang-format off
inline constexpr WarpShape kWarpShapes[] = {
    {1, 1, 2},  {2, 1, 2},  {4, 1, 2},  {8, 1, 2},  {16, 1, 2},  {2, 4, 1},  {4, 4, 1},
    {8, 4, 1},  {32, 1, 2}, {16, 4, 1}, {16, 8, 1}, {32, 2, 1},  {32, 3, 1}, {32, 4, 1},
    {32, 6, 1}, {32, 8, 1}, {32, 12, 1}, {32, 16, 1},
};
// clang-format on
inline constexpr int kWarpShapeCount = sizeof(kWarpShapes) / sizeof(kWarpShapes[0]);
// The layout of an operation. Losses of half types hold rows of 9 to 64 packs in half the lanes,
// with 8 packs each: the fixed cost of a row is a quarter to a half of their instructions. TB/s
// read, by the kernel of all losses (RunInRegisters) with 4 packs; by RunHalfLoss with 8:
// H200 bf16 loss 100, 128, 256, 512, 640, 1000 cols: 1.70, 2.21, 2.44, 2.61, 1.96, 2.44
// H200 bf16 loss 100, 128, 256, 512, 640, 1000 cols: 2.42, 2.44, 3.01, 3.15, 2.80, 3.20
// Unaligned rows with gradients keep the lanes, because two lanes store partial sectors. TB/s read
// and written, 4 lanes (the kernel of all losses) and 2 lanes:
// H200 bf16 loss with gradient 100, 128 cols: 1.33, 2.25; 1.04, 2.45
// the same 100 cols in another run, 4 lanes, kernel of all losses and RunHalfLoss: 1.32, 1.24
constexpr WarpShape WarpShapeOf(int index, const OperationTraits& traits, DType dtype,
                                bool aligned) {
  WarpShape shape = kWarpShapes[index];
  const bool is_loss = traits.TakesLabel() && (aligned || !traits.StoresElements());
  if (is_loss && IsHalf(dtype) && shape.packs_per_lane == 4 && shape.lanes > 2) {
    shape.lanes /= 2, shape.packs_per_lane *= 2;
  }
  return shape;
}

// Maximum registers of row data per lane, in the compute type. With more, the warp tier is slower
// than block_smem, 2^28 elements:
// H200 f32 fwd 2048 cols, 64 registers: warp 0.98, block_smem 0.97
// H200 bf16 fwd 2048 cols, 64 registers: warp 1.08, block_smem 0.98
// H200 f32 grad 1536 cols, 96 registers: warp 0.97, block_smem 1.01
// H200 bf16 grad 2048 cols, 128 registers: warp 0.88, block_smem 1.02
// H200 f64 fwd 1000 cols, 64 registers: warp 0.56, block_smem 0.89
constexpr int WarpMaxRowRegisters(DType dtype) {
  return ByDType<int>{.float32 = 64, .bfloat16 = 64, .float16 = 64, .float64 = 48}[dtype];
}
// Part of a warp, with several packs per lane, serves rows whose fixed cost is comparable to
// loading several packs, so that a warp pays it for several rows at once. Attention scores use half
// a warp: finding the visible columns of a row costs that much. Row scalars do too: they write
// little and take half the time, so the fixed cost weighs more. It weighs most in losses: half a
// warp holds up to 128 packs of them, and a whole warp has one or two layouts, which saves kernels.
// TB/s read, before (staged or in a whole warp) and by this rule. bf16 used the kernel of all
// losses; RunHalfLoss reads 0.54 at 10 columns:
// H200 bf16 loss 10, 50, 197, 300, 500 cols: before 0.56, 1.45, 1.64, 1.43, 1.85
// H200 bf16 loss 10, 50, 197, 300, 500 cols: rule 0.42, 1.64, 1.86, 1.64, 2.56
// H200 bf16 loss 64, 128, 256, 512, 755, 1000 cols: before 1.15, 1.58, 1.80, 1.81, 2.06, 3.00
// H200 bf16 loss 64, 128, 256, 512, 755, 1000 cols: rule 2.16, 2.53, 2.70, 3.02, 2.29, 3.20
// H200 f32 loss 64, 128, 197, 256, 346, 500 cols: before 2.17, 3.02, 2.98, 3.23, 3.07, 3.54
// H200 f32 loss 64, 128, 197, 256, 346, 500 cols: rule 3.25, 3.56, 3.04, 3.75, 3.09, 3.87
constexpr bool WarpShapeFits(const WarpShape& shape, const OperationTraits& traits, DType dtype,
                             bool aligned) {
  const int registers_per_value = ComputeWidth(dtype) / 4;
  const int registers =
      shape.packs_per_lane * PackOf(dtype) * registers_per_value * traits.Inputs();
  const bool fits = registers <= WarpMaxRowRegisters(dtype);
  if (traits.TakesLabel()) {
    if (shape.lanes < 32) return fits && shape.packs_per_lane >= 4;
    return registers == 32 || registers == WarpMaxRowRegisters(dtype);
  }
  if (shape.lanes < 32) {
    const bool is_deep = shape.packs_per_lane > 1;
    if (!traits.StoresElements() && shape.packs_per_lane != 4 && shape.lanes > 2) return false;
    if (is_deep && traits.StoresElements() && !(traits.hides && shape.lanes == 16)) return false;
  }
  return fits && (aligned || shape.lanes == 32);  // short misaligned rows are staged
}

// 4-byte words for the mask of a pack, with one byte per element.
JK_HOST_DEVICE constexpr int MaskWords(int pack) { return (pack + 3) / 4; }
// Alignment of the mask of aligned rows, in bytes: they read the mask of a pack in one access.
constexpr int MaskAlignment(DType dtype) { return 4 * MaskWords(PackOf(dtype)); }

inline constexpr int kWarpTierThreads = 128;
// Short rows are staged if the layouts above waste lanes: unaligned rows, and aligned rows that
// leave much of their layout empty (LeavesLanesIdle).
inline constexpr int kStagedTierThreads = 128;
// Maximum elements of a row per lane: more elements share the fixed cost of a row.
// H200 bf16 fwd 17 cols: 4 lanes 0.81, 2 lanes 0.97
// H200 bf16 fwd 129 cols: 32 lanes 0.80, 16 lanes 0.92
constexpr int MostStagedElements(DType dtype) {
  return ByDType<int>{.float32 = 16, .bfloat16 = 16, .float16 = 16, .float64 = 8}[dtype];
}
// Whether short rows may go through the shared memory of their warp.
constexpr bool MayStage(const OperationTraits& traits) {
  return traits.SharesRows() && (traits.StoresElements() || !traits.TakesLabel());
}
// Maximum length of staged rows. Two inputs halve it, except for half types. Losses with their
// gradients have a maximum of their own; float16 has that of bfloat16. Losses of float64, and of
// float32 rows of more than 346 columns, were not measured.
// H200 f32 fwd 333 cols: a warp's registers 0.86, staged 0.96
// H200 f32 grad 255, 333 cols: a warp's registers 0.99, 0.98; staged 0.99, 0.95
// H200 bf16 grad 257, 401 cols: a warp's registers 0.70, 0.93; staged 1.01 (300 cols), 0.94
// TB/s read and written; bf16 in registers with the kernel of all losses:
// H200 bf16 loss with gradient 50, 104, 197, 300 cols: staged 1.53, 1.70, 1.83, 1.66
// H200 bf16 loss with gradient 50, 104, 197, 300 cols: registers 0.80, 2.10, 2.01, 1.80
// H200 f32 loss with gradient 30, 197, 346 cols: staged 2.41, 2.79, 2.87
// H200 f32 loss with gradient 30, 197, 346 cols: registers 1.55, 2.52, 2.59
// If x and the gradient are aligned differently, only staged kernels and those that gather elements
// serve such rows: losses in `shifted` arrays have no maximum of their own.
constexpr int MostStagedCols(const OperationTraits& traits, DType dtype, bool shifted = false) {
  constexpr ByDType<int> kPartOfTwo = {.float32 = 2, .bfloat16 = 1, .float16 = 1, .float64 = 2};
  constexpr ByDType<int> kPartOfLoss = {.float32 = 1, .bfloat16 = 8, .float16 = 8, .float64 = 1};
  const int part = traits.TakesLabel()    ? (shifted ? 1 : kPartOfLoss[dtype])
                   : traits.Inputs() == 2 ? kPartOfTwo[dtype]
                                          : 1;
  return 32 * MostStagedElements(dtype) / part;
}
// Whether any row uses a layout of the warp tier: no earlier fitting layout has its capacity,
// and some of its rows are not staged (rows with narrower results never are). Unused layouts are
// not compiled.
constexpr bool IsWarpShapeTaken(int index, Operation operation, DType dtype, bool aligned) {
  const OperationTraits& traits = TraitsOf(operation);
  const WarpShape& shape = kWarpShapes[index];
  if (!WarpShapeFits(shape, traits, dtype, aligned)) return false;
  const int packs = shape.lanes * shape.packs_per_lane;
  for (int i = 0; i < index; ++i) {
    const WarpShape& earlier = kWarpShapes[i];
    if (earlier.lanes * earlier.packs_per_lane >= packs &&
        WarpShapeFits(earlier, traits, dtype, aligned)) {
      return false;
    }
  }
  const bool may_narrow = MayNarrow(traits) && dtype == DType::kFloat32;
  const bool are_staged = !aligned && MayStage(traits) && !may_narrow;
  return !are_staged || packs * PackOf(dtype) > MostStagedCols(traits, dtype);
}
// Lanes per staged row (the fewest that hold it), and elements per lane, rounded up to the even
// number of a kernel.
constexpr int StagedRowLanes(int64_t cols, DType dtype) {
  int lanes = 1;
  while (lanes * MostStagedElements(dtype) < cols) lanes *= 2;
  return lanes;
}
constexpr int StagedElements(int64_t cols, DType dtype) {
  const int64_t row_lanes = 2 * StagedRowLanes(cols, dtype);
  return 2 * std::max(static_cast<int>((cols + row_lanes - 1) / row_lanes), 1);
}
// Tier `block`: packs per thread, all inputs together; maximum threads; registers per thread, as
// few as hold the packs. More resident rows per SM leave fewer cycles without a load in flight.
// Time relative to a copy, masked and causal scores, with 32 waves of grid-stride blocks, except in
// the lines with one block per row (the present code):
// H200 bf16 8192 cols: 4 packs in 64 registers 1.12, 1.13
// H200 bf16 8192 cols: 4 packs in 40 or 48 registers 1.09, 1.10
// H200 bf16 8192 cols: 8 packs in 64 or 80 registers 1.09, 1.08
// H200 bf16 8192 cols: one block per row 1.07, 1.07
// H200 f32 8192 cols: 4 packs in 64 registers 1.20, 1.31
// H200 f32 8192 cols: 4 packs in 40 or 48 registers 1.10, 1.10
// H200 f32 8192 cols: 8 packs in 64 or 80 registers 1.10, 1.10
// H200 f32 8192 cols: one block per row 1.08, 1.07
inline constexpr int kBlockPacks = 8;
inline constexpr int kMostBlockThreads = 512;
constexpr int BlockRegisters(DType dtype) {
  return ByDType<int>{.float32 = 64, .bfloat16 = 80, .float16 = 80, .float64 = 64}[dtype];
}

// ---- Thresholds of plans ----

// Registers per thread that plans assume for WarpTierKernel and for the staged kernels, which use
// 32 to 72, when they count resident blocks.
inline constexpr int kWarpRegisters = 32;
inline constexpr int kStagedRegisters = 48;
// Minimum bytes of a staged chunk per input, if rows are many; a chunk has less than twice that.
// H200 f32 fwd 65 cols: 2 KiB 0.89, 4 KiB 0.96, 8 KiB 0.90
// H200 bf16 fwd 17 cols, 4 lanes: 2 KiB 0.75, 4 KiB 0.81, 8 KiB 0.69
// GPUs with 100 KiB per SM were not measured; with two inputs of 511 columns they hold one block.
inline constexpr ByArch<int> kStagedChunkBytes = {.hopper = 4 * 1024};
// Whether aligned rows of `packs` packs are staged because they leave too much of layout `shape`
// empty: softmax and log-softmax that fill less than kLeastFill of a layout of up to two packs per
// lane. Doubles were not measured.
// H200 f32 fwd 36, 136, 200 cols: registers 0.77, 0.80, 0.94; staged 0.95, 0.95, 0.98
// H200 f32 fwd 264 cols, three packs per lane: registers 0.97, staged 0.92
inline constexpr int kMostPacksOfIdleLayout = 2 * 32;
inline constexpr ByArch<ByDType<double>> kLeastFill = {
    .hopper = {.float32 = 0.75, .bfloat16 = 0.75, .float16 = 0.75, .float64 = 0}};
constexpr bool LeavesLanesIdle(const OperationTraits& traits, Arch arch, DType dtype, int64_t packs,
                               const WarpShape& shape) {
  const int layout_packs = shape.lanes * shape.packs_per_lane;
  const bool is_softmax = traits.Inputs() == 1 && traits.finds_max && !traits.hides &&
                          traits.Takes() == 0 && traits.Stores() == 0;
  return is_softmax && layout_packs <= kMostPacksOfIdleLayout &&
         static_cast<double>(packs) < kLeastFill[arch][dtype] * layout_packs;
}
// Distance between the staged rows that a warp computes at once: the one of 1, 2, 4 and 8 with the
// fewest bank conflicts.
// H200 bf16 fwd 33, 65, 127 cols: neighbouring rows 0.82, 0.65, 0.71; this rule 0.97, 0.95, 0.96
constexpr int StagedRowSpacing(int64_t cols, DType dtype, int64_t rows) {
  constexpr int kBanks = 32, kBankBytes = 4;
  const int lanes = StagedRowLanes(cols, dtype), row_groups = 32 / lanes;
  int best = 1, fewest = 33;
  for (int spacing = 1; spacing <= 8 && spacing * row_groups <= rows; spacing *= 2) {
    int words_of[kBanks] = {}, most = 0;
    int64_t last = -1;
    for (int lane = 0; lane < 32; ++lane) {
      const int64_t element = lane / lanes * spacing * cols + lane % lanes;
      const int64_t word = element * ByteWidth(dtype) / kBankBytes;
      if (word != last) most = std::max(most, ++words_of[word % kBanks]);
      last = word;
    }
    if (most < fewest) best = spacing, fewest = most;
  }
  return best;
}
// Rows too long for a warp use the tier `block` if an SM holds kLeastRowsOfBlocks of them. Longer
// rows use shared memory.
// H200 bf16 fwd 3072 cols: block 1.01, block_smem 0.98
// H200 f32 16384 cols: block 0.99, block_smem 0.96
// H200 bf16 32768 cols, one row per SM: block 0.78, block_smem 0.96
// H200 bf16 masked scores 16384 cols, time relative to a copy: block 1.03, block_smem 1.18
inline constexpr ByArch<int> kLeastRowsOfBlocks = {.hopper = 2};
// Three kinds of rows are faster in shared memory and never use `block`. Log-softmax needs its
// input after its terms, so that registers spill; so do those of float32 cross entropy with its
// gradient. Exponentials of doubles spill too. Unaligned rows are slower in `block`, except short
// rows of softmax and logsumexp, losses without gradients, and attention scores (forward only).
// H200 f32 log-softmax 8192 cols: block 0.78, block_smem 0.98
// H200 f64 fwd 1024, 2048, 4096 cols: block 0.89, 0.87, 0.86; block_smem 0.90, 0.96, 0.97
// H200 bf16 grad of scores 12289 cols: block 0.61, block_smem 1.04
// Losses with their gradients, before the warp-0 broadcast (IsLed in smem_rules.h):
// H200 f32 loss with gradient 4096, 8192 cols: block 0.88, 0.89; block_smem 0.91, 0.96
// H200 bf16 loss with gradient 4096, 8192 cols: block 0.85, 0.85; block_smem 0.72, 0.79
inline constexpr ByArch<ByDType<bool>> kLossGradPrefersBlock = {
    .hopper = {.float32 = false, .bfloat16 = true, .float16 = true, .float64 = false}};
// Unaligned losses, TB/s read, 2^28 elements:
// H200 bf16 loss 2047, 3386, 4771, 8191, 12289 cols: one read 0.95, 1.57, 1.59, 1.86, 2.14; block
// 1.43, 2.34, 2.19, 2.09, 2.35
// H200 f32 loss 2047, 3125, 4771, 8191 cols: one read 2.32, 2.85, 3.57, 3.57; block 3.00, 3.34,
// 3.84, 3.47
// us per call of 50 in a program: H200 bf16 loss 16, 1000 x 8191: one read 10.5, 18.5; block 8.5,
// 14.2
// Maximum length of unaligned rows of softmax and logsumexp:
// H200 f32 fwd 2049, 3003, 9001 cols: block 0.98, 0.97, 0.96; block_smem 0.77, 0.90, 0.94
// H200 f32 fwd 12289, 16001 cols: block 0.94, 0.95; block_smem 0.94, 0.94
// H200 bf16 fwd 2049, 3003, 5121 cols: block 0.78, 0.98, 0.98; block_smem 0.62, 0.75, 0.85
// H200 bf16 fwd 8191, 9001 cols: block 0.92, 0.95; block_smem 0.97, 0.96
// H200 bf16 logsumexp 3386, 4771, 8191 cols, TB/s: block 3.28, 3.14, 2.80; one read 2.04, 2.53,
// 3.09
// H200 f32 logsumexp 2047, 4771, 8191 cols, TB/s: block 4.10, 4.15, 4.14; one read 3.25, 4.16,
// 4.10
inline constexpr ByArch<ByDType<int64_t>> kMostMisalignedCols = {
    .hopper = {.float32 = 12288, .bfloat16 = 6144, .float16 = 6144, .float64 = 0}};
constexpr bool PrefersBlock(Operation operation, Arch arch, DType dtype, bool aligned,
                            int64_t cols) {
  const bool stores_terms = FindsMax(operation) && StoresElements(operation);
  if (IsDouble(dtype) && stores_terms) return false;
  if (ScoresMayHaveMask(operation)) return true;
  if (operation == Operation::kLogSoftmaxForward) return false;
  if (operation == Operation::kCrossEntropyForward) return true;
  if (operation == Operation::kCrossEntropyForwardGrad) {
    return aligned && kLossGradPrefersBlock[arch][dtype];
  }
  const bool takes_misaligned =
      operation == Operation::kSoftmaxForward || operation == Operation::kLogSumExpForward;
  return aligned || (takes_misaligned && cols <= kMostMisalignedCols[arch][dtype]);
}

}  // namespace jaxkernels
