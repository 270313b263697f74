// Buffer checks that every handler makes, on the CPU and on CUDA alike.
//
// Owns: the wording of errors about dtypes and shapes. A failed check returns an ffi::Error that
// names the operation, the operand, the expected value and the actual value. Nothing throws. Texts
// are built without iostreams: their number formatting crashes if a process holds two copies of the
// C++ library. Must not know: any operation, any device.
#ifndef JAXKERNELS_CORE_CHECKS_H_
#define JAXKERNELS_CORE_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/shape_text.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

namespace ffi = xla::ffi;

// A buffer and its name in errors.
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

inline ffi::Error MismatchError(std::string_view operation, std::string_view name,
                                std::string_view quantity, std::string_view expected,
                                std::string_view got) {
  const auto text = [](std::string_view view) { return std::string(view); };
  return ffi::Error::InvalidArgument(text(operation) + ": " + text(quantity) + " of " + text(name) +
                                     ": expected " + text(expected) + ", got " + text(got));
}

// Checks that the kernels support the dtype of `operand`.
inline ffi::Error CheckDType(std::string_view operation, const NamedBuffer& operand) {
  const ffi::DataType type = operand.buffer.element_type();
  if (ToDType(type)) return ffi::Error::Success();
  return MismatchError(operation, operand.name, "dtype", "float32, bfloat16, float16 or float64",
                       DTypeName(type));
}

// Checks that `operand` has at least one axis.
inline ffi::Error CheckHasRows(std::string_view operation, const NamedBuffer& operand) {
  const std::size_t rank = operand.buffer.dimensions().size();
  if (rank > 0) return ffi::Error::Success();
  return MismatchError(operation, operand.name, "rank", "1 or more", std::to_string(rank));
}

// Checks that `other` has the shape of `reference`.
inline ffi::Error CheckSameShape(std::string_view operation, const NamedBuffer& other,
                                 const NamedBuffer& reference) {
  const auto wanted = reference.buffer.dimensions(), got = other.buffer.dimensions();
  if (got == wanted) return ffi::Error::Success();
  return MismatchError(operation, other.name, "shape",
                       ShapeText(wanted) + " as " + std::string(reference.name) + " has",
                       ShapeText(got));
}

// Checks that `other` has the dtype and the shape of `reference`.
inline ffi::Error CheckSameAs(std::string_view operation, const NamedBuffer& other,
                              const NamedBuffer& reference) {
  const ffi::DataType wanted = reference.buffer.element_type(), got = other.buffer.element_type();
  if (got == wanted) return CheckSameShape(operation, other, reference);
  return MismatchError(operation, other.name, "dtype",
                       DTypeName(wanted) + " as " + std::string(reference.name) + " has",
                       DTypeName(got));
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

#endif  // JAXKERNELS_CORE_CHECKS_H_
