// Errors and names of buffers for every handler, on the CPU and on CUDA alike.
//
// Owns: the wording of errors about buffers. A failed check returns an ffi::Error that names the
// operation, the operand, the expected and the actual value. Nothing throws, and nothing uses
// iostreams (shape_text.h). Must not know: any operation, any device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape_text.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

namespace ffi = xla::ffi;

struct NamedBuffer {
  std::string_view name;
  ffi::AnyBuffer buffer;
};

// The storage type of a buffer, if the kernels support it.
inline std::optional<DType> ToDType(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return DType::kFloat32;
    case ffi::DataType::BF16:
      return DType::kBFloat16;
    case ffi::DataType::F16:
      return DType::kFloat16;
    case ffi::DataType::F64:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

// "float32", or "XLA type 4" for a type without kernels.
inline std::string DTypeName(ffi::DataType type) {
  if (const std::optional<DType> dtype = ToDType(type)) {
    return std::string(NameOf(*dtype));
  }
  return "XLA type " + std::to_string(static_cast<int>(type));
}

inline std::vector<int64_t> ShapeOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().end()};
}

inline ffi::Error MismatchError(std::string_view operation, std::string_view name,
                                std::string_view quantity, std::string_view expected,
                                std::string_view got) {
  const auto text = [](std::string_view view) { return std::string(view); };
  return ffi::Error::InvalidArgument(text(operation) + ": " + text(quantity) + " of " + text(name) +
                                     ": expected " + text(expected) + ", got " + text(got));
}

// The last axis of a buffer is a row; all other axes count rows. A buffer without elements has no
// rows.
struct RowShape {
  int64_t rows;
  int64_t cols;
};

inline RowShape RowShapeOf(const ffi::AnyBuffer& buffer) {
  const int64_t cols = buffer.dimensions().back();
  const int64_t elements = static_cast<int64_t>(buffer.element_count());
  return {cols == 0 ? 0 : elements / cols, cols};
}

}  // namespace jaxkernels
