// The row operations, as all layers name them.
//
// Owns: their enum and its spelling. Must not know: XLA, CUDA, Python.
#ifndef JAXKERNELS_SOFTMAX_OPERATIONS_H_
#define JAXKERNELS_SOFTMAX_OPERATIONS_H_

#include <string_view>

#include "common/names.h"

namespace jaxkernels {

enum class Operation {
  kSoftmaxForward,
  kLogSoftmaxForward,
  kSoftmaxGrad,
  kLogSoftmaxGrad,
  kLogSoftmaxJvp,
  kMaskedSoftmaxForward,
  kBiasedSoftmaxForward,
  kMaskedSoftmaxGrad
};
inline constexpr std::string_view kOperationNames[] = {
    "softmax_fwd",     "log_softmax_fwd",    "softmax_grad",       "log_softmax_grad",
    "log_softmax_jvp", "masked_softmax_fwd", "biased_softmax_fwd", "masked_softmax_grad"};
constexpr const auto& NamesOf(Operation) { return kOperationNames; }

// An operation runs as a whole, or in two parts, so that a row may be spread over devices: the
// statistics (maximum and sum) of the columns that are here, and the result of these columns from
// the statistics of the whole row.
enum class Part { kWhole, kStatistics, kFinish };
inline constexpr std::string_view kPartNames[] = {"whole", "statistics", "finish"};
constexpr const auto& NamesOf(Part) { return kPartNames; }

// Forward operations find a maximum before they sum.
constexpr bool IsForward(Operation operation) {
  return operation == Operation::kSoftmaxForward || operation == Operation::kLogSoftmaxForward ||
         operation == Operation::kMaskedSoftmaxForward ||
         operation == Operation::kBiasedSoftmaxForward;
}

// Arrays that are read, an element for each element of the result: x; scores and a bias; y and a
// cotangent or tangent.
constexpr int InputsOf(Operation operation) {
  return IsForward(operation) && operation != Operation::kBiasedSoftmaxForward ? 1 : 2;
}

// Operations that may have a mask.
constexpr bool HasMask(Operation operation) {
  return operation == Operation::kMaskedSoftmaxForward ||
         operation == Operation::kBiasedSoftmaxForward;
}

// Operations on attention scores, some of which a row may not see.
constexpr bool Hides(Operation operation) {
  return HasMask(operation) || operation == Operation::kMaskedSoftmaxGrad;
}

// Whether all inputs have the shape of the result; a bias may broadcast against the scores, so that
// its rows lie elsewhere.
constexpr bool SharesRows(Operation operation) {
  return operation != Operation::kBiasedSoftmaxForward;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_OPERATIONS_H_
