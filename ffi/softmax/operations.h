// The names that all layers share: operations and storage types.
//
// Owns: the two enums and their spelling. Must not know: XLA, CUDA, Python.
#ifndef JAXKERNELS_SOFTMAX_OPERATIONS_H_
#define JAXKERNELS_SOFTMAX_OPERATIONS_H_

#include <string_view>

namespace jaxkernels {

enum class DType { kFloat32, kBFloat16, kFloat16, kFloat64 };
inline constexpr std::string_view kDTypeNames[] = {"float32", "bfloat16", "float16", "float64"};

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

constexpr int ByteWidth(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// Forward operations read x; the others read y and a cotangent or tangent.
constexpr bool IsForward(Operation operation) {
  return operation == Operation::kSoftmaxForward || operation == Operation::kLogSoftmaxForward;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_OPERATIONS_H_
