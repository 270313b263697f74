// Storage types, and packs of them.
//
// Owns: their enum, its spelling, their size, how many of them one access moves. Must not know:
// XLA, CUDA, Python, any operation.
#ifndef JAXKERNELS_CORE_DTYPE_H_
#define JAXKERNELS_CORE_DTYPE_H_

#include <string_view>

#include "core/host_device.h"
#include "core/names.h"

namespace jaxkernels {

enum class DType { kFloat32, kBFloat16, kFloat16, kFloat64 };
inline constexpr std::string_view kDTypeNames[] = {"float32", "bfloat16", "float16", "float64"};
constexpr const auto& NamesOf(DType) { return kDTypeNames; }

constexpr int ByteWidth(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// A pack is what one access moves: so many bytes, and so many elements of a type.
inline constexpr int kPackBytes = 16;
inline constexpr int kLinePacks = 8;  // of a line of the L2 cache
constexpr int PackOf(DType dtype) { return kPackBytes / ByteWidth(dtype); }

// What so many elements of a pack say of their type.
JK_HOST_DEVICE constexpr bool IsPackOfHalves(int pack) { return pack == kPackBytes / 2; }
JK_HOST_DEVICE constexpr bool IsPackOfDoubles(int pack) { return pack == kPackBytes / 8; }

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_DTYPE_H_
