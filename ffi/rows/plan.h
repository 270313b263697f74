// The launch policy of the row kernels: maps (problem, device limits) to a plan, without a GPU.
//
// Owns: the problem and the plan, plain values that can be compared and printed. register_rules.h,
// smem_rules.h and long_row_rules.h have the rules. plan.cc chooses the tier; tier_plans.h computes
// lanes, threads, blocks and bytes in it. Must not know: CUDA, XLA, Python.
//
// The summation order of a row depends on cols, dtype, operation, device and the position of the
// row within a cache line (and on whether its operands have the same alignment), but never on rows.
// So a row's bits do not depend on the number of rows. (Few rows may use another kernel, which sums
// in the same order.) For staged rows the order does not depend on the position either.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/fields.h"
#include "rows/operations.h"
#include "rows/row_batches.h"
#include "rows/smem_rules.h"

namespace jaxkernels {

struct RowPlan {
  Part part = Part::kWhole;
  Tier tier = Tier::kAuto;
  int pack = 0;             // elements per 16-byte access
  bool aligned = false;     // every row of every array begins at a pack boundary
  bool on_packs = true;     // all arrays of the result's shape begin at a pack boundary
  int offset = 0;           // elements of a pack before the first row of the result
  bool staged = false;      // short rows in the warp tier, through shared memory
  int warp_shape = -1;      // index into kWarpShapes; warp tier only
  int lanes = 0;            // threads per row
  int packs_per_lane = 0;   // capacity; warp, block and few_rows only
  int kept_packs = 0;       // capacity in packs per input and block, in shared memory or (few_rows)
                            // in registers
  int rows_per_access = 1;  // rows that a group of lanes (staged: a warp) loads together
  int elements_per_lane = 0;    // capacity per row; staged rows only
  int row_spacing = 0;          // distance of concurrent rows in a warp; staged rows only
  int cluster_blocks = 1;       // blocks per row
  bool few_rows = false;        // block_smem and cluster in registers, with twice the threads
  int leaf_turns = 0;           // iterations per leaf; OneReadKernel only
  bool two_sums = false;        // the kernel computes only the first two sums of a loss
  int branches = 0;             // blocks per row; results of stream only
  bool xla_by_default = false;  // programs use XLA's operation unless they request this kernel
  int block_threads = 0;
  int64_t grid_blocks = 0;
  RowBatches batches;     // schedule of rows over blocks or clusters; block_smem and cluster only
  int smem_bytes = 0;     // dynamic shared memory per block
  int blocks_per_sm = 0;  // resident blocks, limited by threads, shared memory and registers;
                          // `warp` counts kWarpRegisters per thread, staged rows kStagedRegisters

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
        Field("few_rows", self.few_rows, self.few_rows),
        Field("leaf_turns", self.leaf_turns, false), Field("branches", self.branches, false),
        Field("two_sums", self.two_sums, false),
        Field("xla_by_default", self.xla_by_default, self.xla_by_default),
        Field("block_threads", self.block_threads), Field("grid_blocks", self.grid_blocks),
        Field("workers", self.batches.workers), Field("rounds", self.batches.rounds),
        Field("halves", self.batches.halves), Field("smem_bytes", self.smem_bytes),
        Field("blocks_per_sm", self.blocks_per_sm));
  }
};

// Maximum packs in the window of a row: rows begin at multiples of gcd(cols, pack) within a pack,
// plus the offset of the first row.
constexpr int64_t MaxPacksOfRow(int64_t cols, int pack, int offset = 0) {
  const int64_t step = std::gcd<int64_t>(std::gcd<int64_t>(cols, pack), offset);
  return (cols + (pack - step) + pack - 1) / pack;
}

// Pack slots in the shared memory of each of `blocks` blocks, in whole lines. A window begins at a
// cache line, up to seven packs before the row.
constexpr int64_t SmemSlots(int64_t row_packs, int blocks) {
  constexpr int kLine = kSmemLineBytes / kPackBytes;
  return (row_packs + kLine - 1 + kLine * blocks - 1) / (kLine * blocks) * kLine;
}

struct RowProblem {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kFloat32;
  Operation operation = Operation::kSoftmaxForward;
  Tier tier = Tier::kAuto;  // kAuto lets the policy choose
  Part part = Part::kWhole;
  int offset = 0;                 // elements of a pack before the result (or the first input)
  bool narrows = false;           // the result has a narrower type
  bool all_sums = false;          // a loss needs all sums
  bool masks_logits = false;      // a loss has a mask
  bool shifted = false;           // an input, other than a bias, is aligned unlike the result
  bool broadcast_aligned = true;  // mask, bias and column are aligned for whole packs
};

struct RowPlanResult {
  RowPlan plan;
  std::string error;
};

RowPlanResult PlanRows(RowProblem problem, const DeviceLimits& limits);

}  // namespace jaxkernels
