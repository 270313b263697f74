// Storage types, and packs of them.
//
// Owns: the enum, its names, tables of values per dtype, sizes in bytes, and elements per pack.
// Must not know: XLA, CUDA, Python, any operation.
#pragma once

#include <iterator>
#include <string_view>
#include <type_traits>

#include "core/host_device.h"
#include "core/names.h"

namespace jaxkernels {

enum class DType { kFloat32, kBFloat16, kFloat16, kFloat64 };
inline constexpr std::string_view kDTypeNames[] = {"float32", "bfloat16", "float16", "float64"};
constexpr const auto& NamesOf(DType) { return kDTypeNames; }

// A value per dtype. Cells have no default: a table without a value for a dtype does not compile.
template <typename T>
struct ByDType {
  static_assert(std::size(kDTypeNames) == 4, "each dtype needs a cell");
  struct Cell {
    JK_HOST_DEVICE constexpr explicit(false) Cell(T value) : value(value) {}
    T value;
  };
  Cell float32, bfloat16, float16, float64;

  JK_HOST_DEVICE constexpr T operator[](DType dtype) const {
    const Cell cells[] = {float32, bfloat16, float16, float64};
    return cells[static_cast<int>(dtype)].value;
  }
};

// Bytes of an element, and of a value in the type that kernels compute in.
constexpr int ByteWidth(DType dtype) {
  return ByDType<int>{.float32 = 4, .bfloat16 = 2, .float16 = 2, .float64 = 8}[dtype];
}
constexpr int ComputeWidth(DType dtype) {
  return ByDType<int>{.float32 = 4, .bfloat16 = 4, .float16 = 4, .float64 = 8}[dtype];
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
