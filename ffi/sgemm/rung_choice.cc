#include "sgemm/rung_choice.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "sgemm/thin/choice.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// What `tensor` takes, in the cycles of tile_choice.cc. Fitted to 310 products, of which five
// get a rung that is more than 5 % slower than the other (README.md).
// H200, all launches of a call in a graph, us (2026-11):
// 512^3 26, 1024^3 37, 2048^3 113, 4096^3 732, 8192^3 5310
struct TensorCost {
  // Starting five kernels instead of one, and those of repairs that find nothing to do.
  static constexpr double kLaunchCycles = 15000;
  static constexpr double kIdleLaunchCycles = 2000;
  // Splitting reads an element once or twice, and writes as much once; so many bytes a cycle.
  static constexpr double kBytesReadOnce = 8, kBytesReadTwice = 12;
  static constexpr double kSplitBytesPerCycle = 1800;
  // A tile of 128 x 128: from its last product to its last store, and 64 of k.
  static constexpr double kTileCycles = 15000;
  static constexpr double kStepCycles = 1700, kCompensatedStepCycles = 2400;
};

// How much longer FFMA takes where the accelerator cannot read lines; `tensor` reads any. What
// padding saves of it (PaddingCost in plan.cc, measured).
constexpr double kFfmaOfFloats = 1.15;

// A product of float16 pairs errs by up to 2^-21 of itself, repairs leave as much (pair.cuh), and
// wgmma truncates: fewer terms than these do not hide that behind k eps.
constexpr int64_t kLeastDepth = 32;

// It holds both operands again.
constexpr int64_t kMaxScratchBytes = int64_t{8} << 30;
constexpr int64_t kMaxScratchBytesUnasked = int64_t{4} << 30;

// Tiles of C have numbers of 32 bits, in lists of elements too.
constexpr int64_t kMaxTiles = int64_t{1} << 24;

bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t most_bytes) {
  if (!limits.has_wgmma || problem.m == 0 || problem.n == 0) return false;
  if (problem.k < kLeastDepth || problem.k > kTensorMostDepth) return false;
  const TensorScratch scratch = ScratchOf(problem);
  return scratch.tiles > 0 && scratch.tiles <= kMaxTiles && scratch.bytes <= most_bytes;
}

double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members) {
  const int64_t tiles =
      CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines) * members;
  const double steps = static_cast<double>(CeilDiv(problem.k, kTensorStepK));
  const auto bytes_of = [&](bool along_k) {
    const bool once = along_k && problem.k <= kMostDepthByLines;
    return once ? TensorCost::kBytesReadOnce : TensorCost::kBytesReadTwice;
  };
  const double bytes_of_k =
      problem.m * bytes_of(!problem.trans_a) + problem.n * bytes_of(problem.trans_b);
  const double step =
      IsCompensated(problem, limits) ? TensorCost::kCompensatedStepCycles : TensorCost::kStepCycles;
  const auto idle_launches = static_cast<double>(LaunchesOfRepairs(problem, limits) - 1);
  return TensorCost::kLaunchCycles + idle_launches * TensorCost::kIdleLaunchCycles +
         bytes_of_k * problem.k * members / TensorCost::kSplitBytesPerCycle +
         CeilDiv(tiles, limits.sm_count) * (TensorCost::kTileCycles + steps * step);
}

// `of_floats`: how much longer it takes where the accelerator cannot read lines.
double CyclesOfPipelined(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members,
                         double of_floats) {
  const TileChoice choice = ChooseOrder(problem, limits, 0);
  const Engine engine = EngineOf(problem, limits, kPipelinedTiles[choice.tile]);
  const double slower = engine == Engine::kTma ? 1 : of_floats;
  return CyclesOf(problem, limits, choice, members) * slower;
}

// As a member of the batch would be made alone, or all of them where the problem says for_batch.
int64_t MembersSeen(const SgemmProblem& problem) { return problem.for_batch ? problem.Batch() : 1; }

// The model of the pipelined rung is for large products. Where they are thin the traffic of the
// memory counts, half of which hides below the arithmetic, and a stage is made of more k than there
// are. H200, us (2026-11):
// (4096, 4096, k): k = 1 to 32 35 to 43, 48 60.6, 64 60.6
// (4095, 4093, k), which the accelerator cannot read: k = 8 98.9, 32 100.9
// small ones, which the model gives 2.7: (1024, 64, 64) 4.4, (8192, 32, 32) 4.0, (512, 512, 32) 3.7
constexpr double kThinLaunchCycles = 2500;
constexpr double kThinOfFloats = 2.2;
constexpr double kMemoryBytesPerCycle = 2 * 2300;
constexpr int64_t kDepthOfStage = 32;

double CyclesOfThinPipelined(const SgemmProblem& problem, const DeviceLimits& limits,
                             int64_t members) {
  const double elements =
      1.0 * problem.m * problem.k + 1.0 * problem.n * problem.k + 1.0 * problem.m * problem.n;
  TileChoice choice = ChooseOrder(problem, limits, 0);
  if (members > 1) choice.tile = ChooseTile(problem, limits, choice);
  const bool of_floats = EngineOf(problem, limits, kPipelinedTiles[choice.tile]) != Engine::kTma;
  SgemmProblem summed = problem;
  summed.k = std::max(problem.k, kDepthOfStage);
  return kThinLaunchCycles +
         CyclesOf(summed, limits, choice, members) * (of_floats ? kThinOfFloats : 1) +
         4 * elements * members / kMemoryBytesPerCycle;
}

// Where both rungs sum in the same order the batch may be seen.
bool ThinPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (!IsThin(problem)) return false;
  const int64_t members = SumsInOrder(problem) ? problem.Batch() : MembersSeen(problem);
  return CyclesOfThin(problem, limits, members) < CyclesOfThinPipelined(problem, limits, members);
}

bool TensorPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t members = MembersSeen(problem);
  const double cycles = CyclesOfTensor(problem, limits, members);
  if (IsThin(problem) && CyclesOfThin(problem, limits, members) <= cycles) return false;
  return cycles < CyclesOfPipelined(problem, limits, members, kFfmaOfFloats);
}

}  // namespace

Algorithm RungOf(const SgemmProblem& asked_problem, const DeviceLimits& limits, Algorithm asked) {
  SgemmProblem problem = asked_problem;
  problem.aligned_a = problem.aligned_b = true;  // not known when a program is lowered
  switch (asked) {
    case Algorithm::kTensor:
      return CanUseTensor(problem, limits, kMaxScratchBytes) ? asked : Algorithm::kPipelined;
    case Algorithm::kThin:
      return IsThin(problem) ? asked : Algorithm::kPipelined;
    case Algorithm::kAuto:
      if (CanUseTensor(problem, limits, kMaxScratchBytesUnasked) && TensorPays(problem, limits)) {
        return Algorithm::kTensor;
      }
      return ThinPays(problem, limits) ? Algorithm::kThin : Algorithm::kPipelined;
    default:
      return asked;
  }
}

bool IsCompensated(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t tiles = CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines);
  return problem.k > kMaxDepthPlain && tiles <= limits.sm_count;
}

int64_t LaunchesOfRepairs(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (IsCompensated(problem, limits)) return CeilDiv(problem.k, kMaxDepthPlain);
  return problem.k > kMaxDepthOfLaunch ? CeilDiv(problem.k, kDepthOfLaunch) : 1;
}

TensorScratch ScratchOf(const SgemmProblem& problem) {
  return MakeTensorScratch(problem.m, problem.n, problem.k, problem.MembersOf(&BatchDim::stride_a),
                           problem.MembersOf(&BatchDim::stride_b), problem.Batch());
}

}  // namespace jaxkernels
