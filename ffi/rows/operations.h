// The row operations, as all layers name them.
//
// Owns: the table of what each operation is. Plans, calls and Python read it, and every struct that
// is an operation, on the CPU or on CUDA, is held to its row (MatchesTable). Must not know: XLA,
// CUDA, Python.
#ifndef JAXKERNELS_ROWS_OPERATIONS_H_
#define JAXKERNELS_ROWS_OPERATIONS_H_

#include <array>
#include <cstddef>
#include <string_view>

#include "core/names.h"

namespace jaxkernels {

enum class Operation {
  kSoftmaxForward,
  kLogSoftmaxForward,
  kSoftmaxGrad,
  kLogSoftmaxGrad,
  kLogSoftmaxJvp,
  kMaskedSoftmaxForward,
  kBiasedSoftmaxForward,
  kMaskedSoftmaxGrad,
  kLogSumExpForward,
  kLogSumExpGrad,
  kLogSumExpJvp,
  kCrossEntropyForward,
  kCrossEntropyForwardGrad,
  kCrossEntropyGrad
};

struct OperationTraits {
  std::string_view name;
  int inputs;  // arrays that are read, each an element for each element of a row
  std::string_view input_names[2];
  bool finds_max;    // the maximum of a row before its sums
  bool keeps_term;   // the result follows from the summand, as exp(x - max) / sum does
  bool hides;        // it works on attention scores, some of which a row may not see
  bool has_mask;     // it may have a mask
  bool shares_rows;  // all inputs have one shape; a bias may broadcast against the scores
  int sums;          // numbers that a row sums, side by side; none: it reduces nothing
  bool counts_max;   // besides, unless of half types: how many terms are those of the maximum
  int x_if_half;     // number of sums relative to the maximum where half types give x, from which
                     // the kernel sums exp(x - max) first; 0 if it always reads y
  bool takes_label;  // it reads a column for each row, behind its inputs
  int takes[2];      // numbers that it reads for each row, behind those, in up to two arrays
  bool stores_elements;  // it has a result for each element
  int stores;            // numbers that it stores for each row, in a result of their own
};

// In the order of the enum.
// clang-format off
inline constexpr OperationTraits kOperations[] = {
    //                                                finds  keeps         has    shares      counts x if  takes         stores
    // name                   inputs                  max    term   hides  mask   rows   sums max    half  label takes  elements stores
    {"softmax_fwd",            1, {"x"},                true,  true,  false, false, true,  1,   false, 0,    false, {0, 0}, true,     0},
    {"log_softmax_fwd",        1, {"x"},                true,  false, false, false, true,  1,   true,  0,    false, {0, 0}, true,     0},
    {"softmax_grad",           2, {"y", "dy"},          false, false, false, false, true,  1,   false, 0,    false, {0, 0}, true,     0},
    {"log_softmax_grad",       2, {"y", "dy"},          false, false, false, false, true,  1,   false, 1,    false, {0, 0}, true,     0},
    {"log_softmax_jvp",        2, {"y", "dx"},          false, false, false, false, true,  1,   false, 2,    false, {0, 0}, true,     0},
    {"masked_softmax_fwd",     1, {"scores"},           true,  true,  true,  true,  true,  1,   false, 0,    false, {0, 0}, true,     0},
    {"biased_softmax_fwd",     2, {"scores", "bias"},   true,  true,  true,  true,  false, 1,   false, 0,    false, {0, 0}, true,     0},
    {"masked_softmax_grad",    2, {"y", "dy"},          false, false, true,  false, true,  1,   false, 0,    false, {0, 0}, true,     0},
    {"logsumexp_fwd",          1, {"x"},                true,  false, false, false, true,  1,   false, 0,    false, {0, 0}, false,    1},
    {"logsumexp_grad",         1, {"x"},                true,  true,  false, false, true,  1,   false, 0,    false, {1, 0}, true,     0},
    {"logsumexp_jvp",          2, {"x", "dx"},          true,  false, false, false, true,  2,   false, 0,    false, {0, 0}, false,    1},
    {"cross_entropy_fwd",      1, {"x"},                true,  false, false, false, true,  5,   false, 0,    true,  {0, 0}, false,    7},
    {"cross_entropy_fwd_grad", 1, {"x"},                true,  false, false, false, true,  5,   false, 0,    true,  {4, 0}, true,     7},
    {"cross_entropy_grad",     1, {"x"},                false, false, false, false, true,  0,   false, 0,    true,  {7, 4}, true,     0},
};
// clang-format on
inline constexpr std::size_t kOperationCount = sizeof(kOperations) / sizeof(kOperations[0]);

constexpr const OperationTraits& TraitsOf(Operation operation) {
  return kOperations[static_cast<std::size_t>(operation)];
}

constexpr std::array<std::string_view, kOperationCount> NamesOf(Operation) {
  std::array<std::string_view, kOperationCount> names{};
  for (std::size_t i = 0; i < kOperationCount; ++i) names[i] = kOperations[i].name;
  return names;
}

// Whether elements of `item_bytes` bytes are read as x; wider ones are y.
constexpr bool ReadsXForY(const OperationTraits& traits, std::size_t item_bytes) {
  return traits.x_if_half > 0 && item_bytes == 2;
}
constexpr bool FindsMax(const OperationTraits& traits, std::size_t item_bytes) {
  return traits.finds_max || ReadsXForY(traits, item_bytes);
}

// The number of sums of a row whose elements have `item_bytes` bytes.
constexpr int SumsOf(const OperationTraits& traits, std::size_t item_bytes) {
  const bool counts_max = traits.counts_max && item_bytes > 2;
  return traits.sums + (counts_max || ReadsXForY(traits, item_bytes) ? 1 : 0);
}

// The numbers of a row that an operation reads.
constexpr int TakesOf(const OperationTraits& traits) { return traits.takes[0] + traits.takes[1]; }

// Whether sums of the GPU's kernels keep what they lose to rounding where parts of a row meet:
// where the result is a term over the sum, in float32.
constexpr bool KeepsRest(const OperationTraits& traits, std::size_t item_bytes) {
  return traits.keeps_term && TakesOf(traits) == 0 && item_bytes == 4;
}

// Scale of a loss's sum of x - max: a power of two, so that rows of the largest finite numbers
// cannot overflow. `TOTAL_SCALE` of cross_entropy_reference.py is the same number.
inline constexpr float kTotalScale = 1.0f / (1ll << 32);

// Whether a struct reduces a row as the table says of `operation`. One that reads x for y may keep
// its terms.
template <typename Op>
constexpr bool ReducesAs(Operation operation) {
  const OperationTraits& traits = TraitsOf(operation);
  constexpr std::size_t kBytes = sizeof(typename Op::Storage);
  return Op::kUsesMax == FindsMax(traits, kBytes) && Op::kSums == SumsOf(traits, kBytes) &&
         (Op::kKeepsTerm == traits.keeps_term || ReadsXForY(traits, kBytes));
}

// Whether a struct is what the table says of its own operation.
template <typename Op>
constexpr bool MatchesTable() {
  const OperationTraits& traits = TraitsOf(Op::kOperation);
  return ReducesAs<Op>(Op::kOperation) && Op::kInputs == traits.inputs &&
         Op::kTakesLabel == traits.takes_label && Op::kTakes == TakesOf(traits) &&
         Op::kStoresElements == traits.stores_elements && Op::kStores == traits.stores;
}

// An operation runs as a whole, or in two parts, so that a row may be spread over devices: the
// statistics (maximum and sums) of the columns that are here, and the result of these columns from
// the statistics of the whole row.
enum class Part { kWhole, kStatistics, kFinish };
inline constexpr std::string_view kPartNames[] = {"whole", "statistics", "finish"};
constexpr const auto& NamesOf(Part) { return kPartNames; }

// Whether an operation has a part. The result of one that stores row scalars follows from the
// statistics alone.
constexpr bool HasPart(const OperationTraits& traits, Part part) {
  if (part == Part::kWhole) return true;
  const bool stores_both = traits.stores_elements && traits.stores > 0;
  if (traits.sums == 0 || stores_both) return false;
  return part == Part::kStatistics || traits.stores_elements;
}

// Where a row of the GPU's kernels lives between its reductions (ffi/README.md). kAuto: where the
// plan finds best.
enum class Tier { kAuto, kWarp, kBlock, kBlockSmem, kCluster, kBlockUncached, kStream };
inline constexpr std::string_view kTierNames[] = {
    "auto", "warp", "block", "block_smem", "cluster", "block_uncached", "stream"};
constexpr const auto& NamesOf(Tier) { return kTierNames; }

constexpr int InputsOf(Operation operation) { return TraitsOf(operation).inputs; }
constexpr bool IsForward(Operation operation) { return TraitsOf(operation).finds_max; }
constexpr bool HidesElements(Operation operation) { return TraitsOf(operation).hides; }
constexpr bool HasMask(Operation operation) { return TraitsOf(operation).has_mask; }
constexpr bool SharesRows(Operation operation) { return TraitsOf(operation).shares_rows; }
// Whether results of float32 elements may be of a half type: weights that a product takes next.
constexpr bool MayNarrow(const OperationTraits& traits) { return traits.hides && traits.finds_max; }
constexpr bool Reduces(Operation operation) { return TraitsOf(operation).sums > 0; }
constexpr bool StoresElements(Operation operation) { return TraitsOf(operation).stores_elements; }

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_OPERATIONS_H_
