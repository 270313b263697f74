// The row operations, as all layers name them.
//
// Owns: their enum and its spelling. Must not know: XLA, CUDA, Python.
#ifndef JAXKERNELS_SOFTMAX_OPERATIONS_H_
#define JAXKERNELS_SOFTMAX_OPERATIONS_H_

#include <string_view>

namespace jaxkernels {

enum class Operation {
  kSoftmaxForward,
  kLogSoftmaxForward,
  kSoftmaxGrad,
  kLogSoftmaxGrad,
  kLogSoftmaxJvp
};
inline constexpr std::string_view kOperationNames[] = {
    "softmax_fwd", "log_softmax_fwd", "softmax_grad", "log_softmax_grad", "log_softmax_jvp"};

constexpr std::string_view NameOf(Operation operation) {
  return kOperationNames[static_cast<int>(operation)];
}

// Forward operations read x; the others read y and a cotangent or tangent.
constexpr bool IsForward(Operation operation) {
  return operation == Operation::kSoftmaxForward || operation == Operation::kLogSoftmaxForward;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_OPERATIONS_H_
