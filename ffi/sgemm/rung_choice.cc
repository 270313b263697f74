#include "sgemm/rung_choice.h"

#include <algorithm>

#include "sgemm/tensor/plan.h"
#include "sgemm/thin/plan.h"
#include "sgemm/tile_choice.h"

namespace jaxkernels {
namespace {

// Slowdown of FFMA if TMA cannot read the rows; `tensor` reads any alignment. It equals the saving
// of padding (PaddingCost in plan.cc, measured).
constexpr double kFfmaOfFloats = 1.15;

// `of_floats` is the slowdown if TMA cannot read the rows.
double CyclesOfPipelined(const SgemmProblem& problem, const DeviceLimits& limits,
                         int64_t batch_count, double of_floats) {
  const TileChoice choice = ChooseOrder(problem, limits, 0);
  const Engine engine = EngineOf(problem, limits, kPipelinedTiles[choice.tile]);
  const double slower = engine == Engine::kTma ? 1 : of_floats;
  return CyclesOf(problem, limits, choice, batch_count) * slower;
}

// The model of `pipelined` is fitted to large products. Thin products also need the time of the
// memory traffic, half of it hidden by the arithmetic. Their stages have more k than the product.
// H200, us (2026-11):
// (4096, 4096, k): k = 1 to 32 35 to 43, 48 60.6, 64 60.6
// (4095, 4093, k), which TMA cannot read: k = 8 98.9, 32 100.9
// small products, modelled as 2.7: (1024, 64, 64) 4.4, (8192, 32, 32) 4.0, (512, 512, 32) 3.7
constexpr double kThinLaunchCycles = 2500;
constexpr double kThinOfFloats = 2.2;
constexpr double kMemoryBytesPerCycle = 2 * 2300;
constexpr int64_t kDepthOfStage = 32;
// Rows of C that do not start at 128-byte boundaries add time to the stores. With more k the
// arithmetic hides it. H200, us, measured and without this term (2026-11):
// (8192, 1000, 32) 26.8 20.8, by `thin` 22.5
// (4096, 4100, 8) 55.7 40.1
// (53608, 300, 16) 56.7 47.7
// (53608, 132, 64) 54.5 54.5
constexpr int64_t kFloatsStoredAtOnce = 32;
constexpr double kBytesPerCycleWithin = 3700;

double CyclesOfThinPipelined(const SgemmProblem& problem, const DeviceLimits& limits,
                             int64_t batch_count) {
  const double results = 1.0 * problem.m * problem.n;
  const double elements = 1.0 * problem.m * problem.k + 1.0 * problem.n * problem.k + results;
  TileChoice choice = ChooseOrder(problem, limits, 0);
  if (batch_count > 1) choice.tile = ChooseTile(problem, limits, choice);
  const bool of_floats = EngineOf(problem, limits, kPipelinedTiles[choice.tile]) != Engine::kTma;
  SgemmProblem summed = problem;
  summed.k = std::max(problem.k, kDepthOfStage);
  const bool stores_parts = problem.n % kFloatsStoredAtOnce != 0 && problem.k <= kDepthOfStage;
  const double storing = stores_parts ? 4 * results * batch_count / kBytesPerCycleWithin : 0;
  return kThinLaunchCycles +
         CyclesOf(summed, limits, choice, batch_count) * (of_floats ? kThinOfFloats : 1) +
         4 * elements * batch_count / kMemoryBytesPerCycle + storing;
}

// ThinPays considers the whole batch if both rungs sum in the same order.
bool ThinPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  if (!IsThin(problem)) return false;
  const int64_t batch_count =
      SumsInOrder(problem) ? problem.batch.Count() : problem.BatchCountForOrder();
  return CyclesOfThin(problem, limits, batch_count) <
         CyclesOfThinPipelined(problem, limits, batch_count);
}

bool TensorPays(const SgemmProblem& problem, const DeviceLimits& limits) {
  const int64_t batch_count = problem.BatchCountForOrder();
  const double cycles =
      CyclesOfTensor(problem, limits, batch_count, SplitOfTensor(problem, limits));
  if (IsThin(problem) && CyclesOfThin(problem, limits, batch_count) <= cycles) return false;
  return cycles < CyclesOfPipelined(problem, limits, batch_count, kFfmaOfFloats);
}

}  // namespace

Algorithm RungOf(const SgemmProblem& asked_problem, const DeviceLimits& limits, Algorithm asked,
                 int split_k) {
  SgemmProblem problem = asked_problem;
  problem.aligned_a = problem.aligned_b = true;  // not known when a program is lowered
  switch (asked) {
    case Algorithm::kTensor:
      return CanUseTensor(problem, limits, true, split_k) ? asked : Algorithm::kPipelined;
    case Algorithm::kThin:
      return IsThin(problem) ? asked : Algorithm::kPipelined;
    case Algorithm::kAuto:
      if (CanUseTensor(problem, limits, false, split_k) && TensorPays(problem, limits)) {
        return Algorithm::kTensor;
      }
      return ThinPays(problem, limits) ? Algorithm::kThin : Algorithm::kPipelined;
    default:
      return asked;
  }
}

}  // namespace jaxkernels
