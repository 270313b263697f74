// Storage types, and packs of them.
//
// Owns: the enum, its names, sizes in bytes, and elements per pack. Must not know: XLA, CUDA,
// Python, any operation.
#ifndef JAXKERNELS_CORE_DTYPE_H_
#define JAXKERNELS_CORE_DTYPE_H_

#include <string_view>
#include <type_traits>

#include "core/host_device.h"
#include "core/names.h"

namespace jaxkernels {

enum class DType { kFloat32, kBFloat16, kFloat16, kFloat64 };
inline constexpr std::string_view kDTypeNames[] = {"float32", "bfloat16", "float16", "float64"};
constexpr const auto& NamesOf(DType) { return kDTypeNames; }

constexpr int ByteWidth(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// A pack is one vectorized access of 16 bytes; PackOf gives its number of elements.
inline constexpr int kPackBytes = 16;
constexpr int PackOf(DType dtype) { return kPackBytes / ByteWidth(dtype); }

// The DType of a storage type. numeric.cuh and numeric_cpu.h specialise it for their half types.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kFloat32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kFloat64> {};
template <typename T>
inline constexpr DType kDTypeOf = DTypeOf<T>::value;

JK_HOST_DEVICE constexpr bool IsHalf(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}
JK_HOST_DEVICE constexpr bool IsDouble(DType dtype) { return dtype == DType::kFloat64; }

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_DTYPE_H_
