// The policy of the matrix product: (problem, device limits) -> plan. Every launch rule lives in
// plan.cc, or in what it asks: rung_choice.cc, tile_choice.cc, and choice.cc and plan.cc of `thin`
// and `tensor`.
//
// Owns: which rung of the ladder runs, its tile, how k is split, and the grid. A plan is a plain
// value that can be compared and printed; it is made without a GPU. Must not know: CUDA, XLA,
// Python.
//
// The order of summation (how k is split over blocks, and over the slices of a block) depends on m,
// n, k, the transposes and the device alone, the one that a program is compiled for too: a member
// of a batch gets the bits that it would get alone. The exceptions are a b that the members share
// (under 64 rows each they are planned as one tall matrix), problems that say for_batch, and
// batches whose scratch for the rung `tensor` is beyond its bound, in 32 groups too, where that of
// a member is not.
#ifndef JAXKERNELS_SGEMM_PLAN_H_
#define JAXKERNELS_SGEMM_PLAN_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "core/device_limits.h"
#include "core/fields.h"
#include "sgemm/problem.h"
#include "sgemm/rung_choice.h"
#include "sgemm/thin/forms.h"
#include "sgemm/tiles.h"

namespace jaxkernels {

struct SgemmPlan {
  Algorithm algorithm = Algorithm::kAuto;
  int tile = -1;                    // index into kPipelinedTiles, of kShallow into kShallowTiles
  Engine engine = Engine::kFloats;  // pipelined only
  ThinForm thin = ThinForm::kNone;  // thin only
  bool many_is_a = false;           // thin: A has the many lines (shallow: unless C is one row)
  int block_m = 0, block_n = 0, block_k = 0;
  int thread_m = 0, thread_n = 0;
  int block_threads = 0;
  int stages = 1;           // tiles of A and B in shared memory at once
  int slices = 1;           // groups of threads of a block that share one tile of C
  int cluster_blocks = 1;   // that share one tile of C, and k of it, without scratch; thin only
  int split_k = 1;          // blocks that share one tile of C
  int launches = 1;         // one after the other, each adds a part of k to C; or split_k, not both
  int64_t k_per_split = 0;  // that a split or a launch sums; the last one may have less
  int64_t tiles_m = 0, tiles_n = 0;
  int64_t grid_blocks = 0;
  int sm_count = 0;        // of the device
  int stagger_cycles = 0;  // by which the second block of every SM starts late
  int smem_bytes = 0;      // dynamic shared memory of one block
  int blocks_per_sm = 0;
  int64_t partial_elements = 0;   // float32 elements of scratch: splits' sums, or split operands
  int64_t groups = 1;             // tensor: of members, made one after the other; the last is rest
  bool compensated = false;       // tensor: what sums lose is added to them at the end
  int64_t most_marked_tiles = 0;  // tensor: with more of a member all its tiles are made again
  int64_t tiles_before_look = 0;  // after them it looks whether that is so; 0: at the end alone
  int pad_a = 0, pad_b = 0;       // elements behind every stored row of an operand
  int pack_a = 1, pack_b = 1;     // elements that a thread loads at once; not of kTma
  int pack_c = 1;                 // elements of C and of the result or its parts, likewise
  int reduce_pack = 0;            // elements of a thread of ReduceSplits; 0 where it does not run

  static constexpr const char* kName = "SgemmPlan";
  template <typename Self>
  static auto FieldsOf(Self& self) {
    return std::tuple(
        Field("algorithm", self.algorithm), Field("tile", self.tile, false),
        Field("engine", self.engine, self.algorithm == Algorithm::kPipelined),
        Field("thin", self.thin, self.algorithm == Algorithm::kThin),
        Field("many_is_a", self.many_is_a, self.algorithm == Algorithm::kThin),
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
        Field("most_marked_tiles", self.most_marked_tiles, self.algorithm == Algorithm::kTensor),
        Field("tiles_before_look", self.tiles_before_look, self.algorithm == Algorithm::kTensor),
        Field("pad_a", self.pad_a), Field("pad_b", self.pad_b),
        Field("pack_a", self.pack_a, self.engine != Engine::kTma),
        Field("pack_b", self.pack_b, self.engine != Engine::kTma), Field("pack_c", self.pack_c),
        Field("reduce_pack", self.reduce_pack));
  }
};

// A plan, or why there is none.
struct SgemmPlanResult {
  SgemmPlan plan;
  SgemmPlan repairs;  // by which the rung `tensor` makes tiles that pairs of float16 cannot hold
  std::string error;
};

// The problem with the members of the batch as rows of one tall matrix, where all of them share B
// and have few rows of their own.
SgemmProblem WithTallRows(SgemmProblem problem);

// The problem with padding behind the rows of its operands, where it is worth a copy: the
// tensor memory accelerator reads lines that begin at multiples of 16 bytes. Where operands will
// begin is not known then.
SgemmProblem WithPadding(SgemmProblem problem, const DeviceLimits& limits, Algorithm algorithm);

// split_k = 0 lets the policy choose; any other number is taken as it is (a program that was
// compiled for one device keeps its order of summation, and its scratch, on another).
SgemmPlanResult PlanSgemm(const SgemmProblem& problem, const DeviceLimits& limits,
                          Algorithm algorithm = Algorithm::kAuto, int split_k = 0);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_PLAN_H_
