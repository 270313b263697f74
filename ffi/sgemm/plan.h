// The policy of the matrix product: (problem, device limits) -> plan. plan.cc chooses the rung;
// plan.cc of pipelined/, thin/ and tensor/ have the launch rules of those rungs (rung_plans.h).
//
// Owns: the rung of the ladder, its tile, the split of k and the grid. A plan is a plain value that
// can be compared and printed. Making one needs no GPU. Must not know: CUDA, XLA, Python.
//
// The order of summation is how k is split over blocks, and over the slices of a block. It depends
// only on m, n, k, the transposes, the device, and the device that the program was compiled for; in
// slices, and in `thin` with a K-major long side, also on whether rows start at 16-byte boundaries.
// A batch member therefore gets the same bits as the product alone. There are three exceptions:
// - Members share B and have fewer than 64 rows each: they are planned as one tall matrix.
// - The problem sets for_batch.
// - The scratch of a batch for `tensor` exceeds its bound even in 32 groups, a member's does not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "core/device_limits.h"
#include "core/fields.h"
#include "sgemm/problem.h"
#include "sgemm/tiles.h"

namespace jaxkernels {

// The rungs of the ladder. kAuto lets the policy choose.
enum class Algorithm {
  kAuto,
  kNaive,
  kBlockTile,
  kThreadTile,
  kWarpTile,
  kSplitTile,
  kPipelined,
  kThin,
  kTensor,
};

inline constexpr std::string_view kAlgorithmNames[] = {
    "auto",       "naive",     "block_tile", "thread_tile", "warp_tile",
    "split_tile", "pipelined", "thin",       "tensor",
};
constexpr const auto& NamesOf(Algorithm) { return kAlgorithmNames; }

struct SgemmPlan {
  Algorithm algorithm = Algorithm::kAuto;
  int tile = -1;                    // index into kPipelinedTiles; kSmallK: into kSmallKTiles
  Engine engine = Engine::kFloats;  // pipelined only
  ThinForm thin = ThinForm::kNone;  // thin only
  bool long_is_a = false;           // thin: A is the long side (kSmallK: unless C is one row)
  int block_m = 0, block_n = 0, block_k = 0;
  int thread_m = 0, thread_n = 0;
  int block_threads = 0;
  int stages = 1;           // tiles of A and of B in shared memory
  int slices = 1;           // thread groups of a block that share a tile of C
  int cluster_blocks = 1;   // thin: blocks of a cluster that share a tile of C and its k
  int split_k = 1;          // blocks that share one tile of C
  int launches = 1;         // successive launches that add parts of k to C; 1 if split_k > 1
  int64_t k_per_split = 0;  // k of a split or a launch; the last one may have less
  int64_t tiles_m = 0, tiles_n = 0;
  int64_t grid_blocks = 0;
  int sm_count = 0;        // of the device
  int stagger_cycles = 0;  // start delay of the second block of every SM
  int smem_bytes = 0;      // dynamic shared memory of one block
  int blocks_per_sm = 0;
  int64_t partial_elements = 0;   // float32 elements of scratch: split-k sums, or split operands
  int64_t groups = 1;             // tensor: batch groups, in sequence; the last may be smaller
  bool compensated = false;       // tensor: adds the rounding errors of the sums at the end
  int64_t max_flagged_tiles = 0;  // tensor: with more, all tiles of a product are recomputed
  int64_t probe_tiles = 0;        // tensor: tiles computed before testing for that; 0: never
  int pad_a = 0, pad_b = 0;       // padding elements after every stored row
  int pack_a = 1, pack_b = 1;     // elements per load; unused by kTma
  int pack_c = 1;                 // elements per store of C, the result or split-k sums
  int reduce_pack = 0;            // elements per thread of ReduceSplits; 0 if it does not run

  static constexpr const char* kName = "SgemmPlan";
  template <typename Self>
  // Names in quotes are public in Python and stay as released.
  static auto FieldsOf(Self& self) {
    return std::tuple(
        Field("algorithm", self.algorithm), Field("tile", self.tile, false),
        Field("engine", self.engine, self.algorithm == Algorithm::kPipelined),
        Field("thin", self.thin, self.algorithm == Algorithm::kThin),
        Field("many_is_a", self.long_is_a, self.algorithm == Algorithm::kThin),
        Field("block_m", self.block_m), Field("block_n", self.block_n),
        Field("block_k", self.block_k), Field("thread_m", self.thread_m),
        Field("thread_n", self.thread_n), Field("block_threads", self.block_threads),
        Field("stages", self.stages), Field("slices", self.slices),
        Field("cluster_blocks", self.cluster_blocks, self.algorithm == Algorithm::kThin),
        Field("split_k", self.split_k), Field("launches", self.launches),
        Field("k_per_split", self.k_per_split), Field("tiles_m", self.tiles_m),
        Field("tiles_n", self.tiles_n), Field("grid_blocks", self.grid_blocks),
        Field("sm_count", self.sm_count), Field("stagger_cycles", self.stagger_cycles),
        Field("smem_bytes", self.smem_bytes), Field("blocks_per_sm", self.blocks_per_sm),
        Field("partial_elements", self.partial_elements),
        Field("groups", self.groups, self.algorithm == Algorithm::kTensor),
        Field("compensated", self.compensated, self.algorithm == Algorithm::kTensor),
        Field("most_marked_tiles", self.max_flagged_tiles, self.algorithm == Algorithm::kTensor),
        Field("tiles_before_look", self.probe_tiles, self.algorithm == Algorithm::kTensor),
        Field("pad_a", self.pad_a), Field("pad_b", self.pad_b),
        Field("pack_a", self.pack_a, self.engine != Engine::kTma),
        Field("pack_b", self.pack_b, self.engine != Engine::kTma), Field("pack_c", self.pack_c),
        Field("reduce_pack", self.reduce_pack));
  }
};

struct SgemmPlanResult {
  SgemmPlan plan;
  SgemmPlan repairs;  // recomputes tiles of `tensor` that pairs of float16 cannot represent
  std::string error;
};

// WithTallRows makes the batch members rows of one tall matrix, if they share B and have few rows
// each.
SgemmProblem WithTallRows(SgemmProblem problem);

// WithPadding adds padding after the rows of the operands, if that is worth a copy. The tensor
// memory accelerator (TMA) reads only rows that start at 16-byte boundaries. The addresses of the
// operands are not known at this point.
SgemmProblem WithPadding(SgemmProblem problem, const DeviceLimits& limits, Algorithm algorithm);

// PlanSgemm chooses the split if split_k is 0. It keeps any other value: a program that was
// compiled for one device keeps its order of summation and its scratch on another.
SgemmPlanResult PlanSgemm(const SgemmProblem& problem, const DeviceLimits& limits,
                          Algorithm algorithm = Algorithm::kAuto, int split_k = 0);

}  // namespace jaxkernels
