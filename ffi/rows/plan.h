// The policy of the row kernels: (problem, device limits) -> plan, made without a GPU.
//
// Owns: what a plan is made for, and the plan, a plain value that can be compared and printed. The
// rules: register_rules.h, smem_rules.h, long_row_rules.h. Which tier a row takes: plan.cc. Its
// lanes, threads, blocks and bytes there: tier_plans.h. Must not know: CUDA, XLA, Python.
//
// The order in which a row is summed depends on cols, dtype, operation, device and where in a
// cache line the row begins (and whether its operands begin at one place of a pack), never on rows:
// a row gives the same bits however many stand behind it. (Few rows may have another kernel, which
// adds in the same order.) Where rows are staged it does not depend on where the row begins either.
#ifndef JAXKERNELS_ROWS_PLAN_H_
#define JAXKERNELS_ROWS_PLAN_H_

#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>

#include "core/device_limits.h"
#include "core/dtype.h"
#include "core/fields.h"
#include "rows/operations.h"
#include "rows/register_rules.h"
#include "rows/row_batches.h"
#include "rows/smem_rules.h"

namespace jaxkernels {

struct SoftmaxPlan {
  Part part = Part::kWhole;
  Tier tier = Tier::kAuto;
  int pack = 0;               // elements moved by one 16-byte access
  bool aligned = false;       // every row of every array begins at a pack boundary
  bool on_packs = true;       // all arrays of the result's shape begin at a pack boundary
  int offset = 0;             // elements of a pack before the first row of the result
  bool staged = false;        // short rows in the warp tier, through shared memory
  int warp_shape = -1;        // index into kWarpShapes; warp tier only
  int lanes = 0;              // threads that share a row
  int packs_per_lane = 0;     // capacity; warp and block tiers, and few rows
  int kept_packs = 0;         // of each input, that a block keeps in shared memory or, of few rows,
                              // in registers, or has room for
  int rows_per_access = 1;    // rows that a group of lanes (staged: a warp) moves together
  int elements_per_lane = 0;  // of a row, capacity; staged rows only
  int row_spacing = 0;        // of the rows that a warp computes at once; staged rows only
  int cluster_blocks = 1;     // blocks that share a row
  bool few_rows = false;      // block_smem and cluster in registers, with twice as many threads
  int leaf_turns = 0;         // packs of a leaf that a lane has; rows read in leaves
  int branches = 0;           // blocks that share a row; results of stream
  bool xla_by_default = false;  // a program runs XLA's operation unless it asks for this kernel
  int block_threads = 0;
  int64_t grid_blocks = 0;
  RowBatches batches;     // which block or cluster takes which rows; block_smem and cluster only,
                          // where few rows take one each
  int smem_bytes = 0;     // dynamic shared memory of one block
  int blocks_per_sm = 0;  // resident at once, by threads, shared memory and registers, of which
                          // `warp` is counted with 32, staged rows with kStagedRegisters

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
        Field("xla_by_default", self.xla_by_default, self.xla_by_default),
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
  bool narrows = false;  // the result has a narrower type
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
