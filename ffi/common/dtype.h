// Storage types.
//
// Owns: their enum, its spelling, their size. Must not know: XLA, CUDA, Python, any operation.
#ifndef JAXKERNELS_COMMON_DTYPE_H_
#define JAXKERNELS_COMMON_DTYPE_H_

#include <string_view>

namespace jaxkernels {

enum class DType { kFloat32, kBFloat16, kFloat16, kFloat64 };
inline constexpr std::string_view kDTypeNames[] = {"float32", "bfloat16", "float16", "float64"};

constexpr int ByteWidth(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_COMMON_DTYPE_H_
