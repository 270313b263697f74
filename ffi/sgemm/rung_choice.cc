#include "sgemm/rung_choice.h"

#include "core/ceil_div.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// What `tensor` takes, in the cycles of tile_choice.cc. Fitted to 310 products; where it errs by
// more than a tenth of the time, FFMA and `tensor` are far apart, or members of a batch would gain
// together what one of them would lose alone.
// H200, all launches of a call in a graph, us (2026-11):
// 512^3 26, 1024^3 37, 2048^3 113, 4096^3 732, 8192^3 5310
struct TensorCost {
  // Starting five kernels instead of one, and those of repairs that find nothing to do.
  static constexpr double kLaunchCycles = 15000;
  static constexpr double kIdleLaunchCycles = 2000;
  // Splitting reads an element once, along k, or twice, and writes as much once; so many bytes a
  // cycle.
  static constexpr double kBytesAlongK = 8, kBytesAcrossK = 12;
  static constexpr double kSplitBytesPerCycle = 1800;
  // A tile of 128 x 128: from its last product to its last store, and 64 of k.
  static constexpr double kTileCycles = 15000;
  static constexpr double kStepCycles = 1700, kCompensatedStepCycles = 2400;
};

// How much longer FFMA takes where the accelerator cannot read lines; `tensor` reads any.
constexpr double kFfmaOfFloats = 1.15;

// A product of float16 pairs errs by up to 4 * 2^-23 of itself, which fewer terms than these do not
// hide behind k eps.
constexpr int64_t kLeastDepth = 16;

// The sums of 64 of k each are added one after the other. Simulated, relF of so many normal terms:
// 4096 1.4e-7, 16384 2.8e-7, 65536 5.5e-7, 200000 1.0e-6. FFMA sums parts of 2816 apart.
constexpr int64_t kMostDepth = 65536;

// Memory that may be taken without having been asked for: it holds both operands again.
constexpr int64_t kMaxScratchBytes = int64_t{8} << 30;

// Tiles of C have numbers of 32 bits, in lists of elements too.
constexpr int64_t kMaxTiles = int64_t{1} << 24;

bool CanUseTensor(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (!limits.has_wgmma || problem.m == 0 || problem.n == 0) return false;
  if (problem.k < kLeastDepth || problem.k > kMostDepth) return false;
  const TensorScratch scratch = ScratchOf(problem);
  return scratch.tiles > 0 && scratch.tiles <= kMaxTiles && scratch.bytes <= kMaxScratchBytes;
}

double CyclesOfTensor(const SgemmProblem& problem, const DeviceLimits& limits, int64_t members) {
  const int64_t tiles =
      CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines) * members;
  const double steps = static_cast<double>(CeilDiv(problem.k, kTensorStepK));
  const double bytes_of_k =
      problem.m * (problem.trans_a ? TensorCost::kBytesAcrossK : TensorCost::kBytesAlongK) +
      problem.n * (problem.trans_b ? TensorCost::kBytesAlongK : TensorCost::kBytesAcrossK);
  const bool compensated = IsCompensated(problem, limits);
  const int64_t depth = compensated ? kMaxDepthPlain : kDepthOfLaunch;
  const double step = compensated ? TensorCost::kCompensatedStepCycles : TensorCost::kStepCycles;
  return TensorCost::kLaunchCycles +
         static_cast<double>(problem.k / depth) * TensorCost::kIdleLaunchCycles +
         bytes_of_k * problem.k * members / TensorCost::kSplitBytesPerCycle +
         CeilDiv(tiles, limits.sm_count) * (TensorCost::kTileCycles + steps * step);
}

// As a member of the batch would be made alone, or all of them where the problem says for_batch.
bool TensorPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t members = problem.for_batch ? problem.Batch() : 1;
  const TileChoice ffma = ChooseOrder(problem, limits, 0);
  const Engine engine = EngineOf(problem, limits, kPipelinedTiles[ffma.tile]);
  return CyclesOfTensor(problem, limits, members) <
         CyclesOf(problem, limits, ffma, members) * (engine == Engine::kTma ? 1 : kFfmaOfFloats);
}

}  // namespace

Algorithm RungOf(const SgemmProblem& problem, const DeviceLimits& limits, Algorithm asked) {
  if (asked != Algorithm::kTensor && asked != Algorithm::kAuto) return asked;
  const bool is_wanted = asked == Algorithm::kTensor || TensorPays(problem, limits);
  return is_wanted && CanUseTensor(problem, limits) ? Algorithm::kTensor : Algorithm::kPipelined;
}

bool IsCompensated(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t tiles = CeilDiv(problem.m, kTensorLines) * CeilDiv(problem.n, kTensorLines);
  return problem.k > kMaxDepthPlain && tiles <= limits.sm_count;
}

TensorScratch ScratchOf(const SgemmProblem& problem) {
  return MakeTensorScratch(problem.m, problem.n, problem.k, problem.MembersOf(&BatchDim::stride_a),
                           problem.MembersOf(&BatchDim::stride_b), problem.Batch());
}

}  // namespace jaxkernels
