// The row operations and their traits, shared by all layers.
//
// Owns: the table of operations. The structs that implement them (ops/) take their constants from
// it. Must not know: XLA, CUDA, Python.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "core/dtype.h"
#include "core/names.h"
#include "rows/contract.h"

namespace jaxkernels {

enum class Operation {
  kSoftmaxForward,
  kLogSoftmaxForward,
  kSoftmaxGrad,
  kLogSoftmaxGrad,
  kMaskedSoftmaxForward,
  kBiasedSoftmaxForward,
  kMaskedSoftmaxGrad,
  kLogSumExpForward,
  kLogSumExpGrad,
  kRmsNormForward,
  kRmsNormGrad,
  kCrossEntropyForward,
  kCrossEntropyForwardGrad,
  kCrossEntropyGrad
};

// Numbers per row of a loss: its sums, its residuals (the maximum, the sums, the element at the
// label), and the cotangents of its gradient.
inline constexpr int kLossSums = 5, kLossResiduals = kLossSums + 2, kLossCotangents = 4;

// The traits of each operation, in the order of the enum.
inline constexpr OperationTraits kOperations[] = {
    {.name = "softmax_fwd",
     .operands = {{"x"}},
     .results = {{"y"}},
     .finds_max = true,
     .keeps_term = true,
     .sums = 1},
    {.name = "log_softmax_fwd",
     .operands = {{"x"}},
     .results = {{"y"}},
     .finds_max = true,
     .sums = 1,
     .counts_max = true},
    {.name = "softmax_grad", .operands = {{"y"}, {"dy"}}, .results = {{"dx"}}, .sums = 1},
    // docs/tutorials/row_operation.md includes this entry: [begin]
    {.name = "log_softmax_grad",
     .operands = {{"y"}, {"dy"}},
     .results = {{"dx"}},
     .sums = 1,
     .x_if_half = true},
    // [end]
    {.name = "masked_softmax_fwd",
     .operands = {{"scores"}, {"mask", Role::kMask}},
     .results = {{"y"}},
     .finds_max = true,
     .keeps_term = true,
     .hides = true,
     .sums = 1},
    {.name = "biased_softmax_fwd",
     .operands = {{"scores"}, {"mask", Role::kMask}, {"bias", Role::kBroadcast}},
     .results = {{"y"}},
     .finds_max = true,
     .keeps_term = true,
     .hides = true,
     .sums = 1},
    {.name = "masked_softmax_grad",
     .operands = {{"y"}, {"dy"}},
     .results = {{"dx"}},
     .hides = true,
     .sums = 1},
    {.name = "logsumexp_fwd",
     .operands = {{"x"}},
     .results = {{"lse", Role::kRow}},
     .finds_max = true,
     .sums = 1},
    {.name = "logsumexp_grad",
     .operands = {{"x"}, {"dlse", Role::kRow}},
     .results = {{"dx"}},
     .finds_max = true,
     .keeps_term = true,
     .sums = 1},
    {.name = "rms_norm_fwd",
     .operands = {{"x"}, {"scale", Role::kColumn}},
     .results = {{"y"}},
     .sums = 1,
     .averages = true},
    {.name = "rms_norm_grad",
     .operands = {{"x"}, {"scale", Role::kColumn}, {"dy"}},
     .results = {{"dx"}},
     .sums = 2,
     .averages = true},
    {.name = "cross_entropy_fwd",
     .operands = {{"x"}, {"label", Role::kLabel}, {"mask", Role::kMask}, {"scales", Role::kScales}},
     .results = {{"kept", Role::kRow, kLossResiduals}},
     .finds_max = true,
     .sums = kLossSums},
    {.name = "cross_entropy_fwd_grad",
     .operands = {{"x"},
                  {"label", Role::kLabel},
                  {"mask", Role::kMask},
                  {"scales", Role::kScales},
                  {"numbers", Role::kRow, 4}},
     .results = {{"dx"}, {"kept", Role::kRow, kLossResiduals}},
     .finds_max = true,
     .sums = kLossSums},
    {.name = "cross_entropy_grad",
     .operands = {{"x"},
                  {"label", Role::kLabel},
                  {"mask", Role::kMask},
                  {"scales", Role::kScales},
                  {"kept", Role::kRow, kLossResiduals},
                  {"cotangent", Role::kRow, kLossCotangents}},
     .results = {{"dx"}}},
};
inline constexpr std::size_t kOperationCount = sizeof(kOperations) / sizeof(kOperations[0]);

constexpr bool AllSupported() {
  for (const OperationTraits& traits : kOperations) traits.Check();
  return kOperationCount == static_cast<std::size_t>(Operation::kCrossEntropyGrad) + 1;
}
static_assert(AllSupported(), "a missing entry");

constexpr const OperationTraits& TraitsOf(Operation operation) {
  return kOperations[static_cast<std::size_t>(operation)];
}

constexpr std::array<std::string_view, kOperationCount> NamesOf(Operation) {
  std::array<std::string_view, kOperationCount> names{};
  for (std::size_t i = 0; i < kOperationCount; ++i) names[i] = kOperations[i].name;
  return names;
}

// Whether the operation reads x instead of y for this dtype.
constexpr bool ReadsXForY(const OperationTraits& traits, DType dtype) {
  return traits.x_if_half && IsHalf(dtype);
}
constexpr bool UsesMax(const OperationTraits& traits, DType dtype) {
  return traits.finds_max || ReadsXForY(traits, dtype);
}

constexpr int SumsOf(const OperationTraits& traits, DType dtype) {
  const bool counts_max = traits.counts_max && !IsHalf(dtype);
  return traits.sums + (counts_max || ReadsXForY(traits, dtype) ? 1 : 0);
}

// Whether GPU kernels compensate the sums of the parts of a row: yes for float32 results of the
// form term / sum.
constexpr bool KeepsRest(const OperationTraits& traits, DType dtype) {
  return traits.keeps_term && traits.Takes() == 0 && dtype == DType::kFloat32;
}

// Scale of a loss's sum of x - max: a power of two that keeps rows of the largest finite numbers
// from overflowing. It must equal `TOTAL_SCALE` of loss_measures.py.
inline constexpr float kTotalScale = 1.0f / (1ll << 32);

// A list of operations: structs over one arithmetic.
template <typename... Ops>
struct OperationList {};

// Whether the list has each operation of the table that `belongs` once, and no other.
template <typename... Ops>
constexpr bool IsListOf(OperationList<Ops...>, bool (OperationTraits::*belongs)() const) {
  for (std::size_t i = 0; i < kOperationCount; ++i) {
    const int times = (0 + ... + (Ops::kOperation == static_cast<Operation>(i) ? 1 : 0));
    if (times != ((kOperations[i].*belongs)() ? 1 : 0)) return false;
  }
  return true;
}

// An operation runs as a whole, or in two parts for rows that are sharded over devices: the
// statistics (maximum and sums) of the local columns, and the result of these columns from the
// statistics of the whole row.
enum class Part { kWhole, kStatistics, kFinish };
inline constexpr std::string_view kPartNames[] = {"whole", "statistics", "finish"};
constexpr const auto& NamesOf(Part) { return kPartNames; }

// Whether an operation has a part. Operations without sums or with two results have none. Row
// scalars are computed from the statistics elsewhere, so operations that store only those have no
// kFinish.
constexpr bool HasPart(const OperationTraits& traits, Part part) {
  if (part == Part::kWhole) return true;
  if (traits.sums == 0 || traits.results.size() > 1) return false;
  return part == Part::kStatistics || traits.StoresElements();
}

// GPU tiers, by where a row lives between its reductions (ffi/README.md). kAuto: the plan chooses.
enum class Tier { kAuto, kWarp, kBlock, kBlockSmem, kCluster, kBlockUncached, kStream };
inline constexpr std::string_view kTierNames[] = {
    "auto", "warp", "block", "block_smem", "cluster", "block_uncached", "stream"};
constexpr const auto& NamesOf(Tier) { return kTierNames; }
// The end of errors about a tier that cannot run.
inline constexpr char kLeaveTierOut[] = ". Leave tier= out to let the plan choose one";

constexpr int InputsOf(Operation operation) { return TraitsOf(operation).Inputs(); }
constexpr bool FindsMax(Operation operation) { return TraitsOf(operation).finds_max; }
constexpr bool HidesElements(Operation operation) { return TraitsOf(operation).hides; }
// Whether this is an operation on attention scores that may have a mask.
constexpr bool ScoresMayHaveMask(Operation operation) {
  return HidesElements(operation) && TraitsOf(operation).HasMask();
}
constexpr bool SharesRows(Operation operation) { return TraitsOf(operation).SharesRows(); }
// Whether results of float32 elements may have a half type: attention weights, which a matrix
// product reads next.
constexpr bool MayNarrow(const OperationTraits& traits) { return traits.hides && traits.finds_max; }
constexpr bool Reduces(Operation operation) { return TraitsOf(operation).sums > 0; }
constexpr bool StoresElements(Operation operation) { return TraitsOf(operation).StoresElements(); }

}  // namespace jaxkernels
