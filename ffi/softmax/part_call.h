// The calls of the parts of an operation: what their buffers and attributes must look like, on the
// CPU and on CUDA alike.
//
// Owns: the way from such a call to arrays. Must not know: any device.
#ifndef JAXKERNELS_SOFTMAX_PART_CALL_H_
#define JAXKERNELS_SOFTMAX_PART_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/checks.h"
#include "softmax/attention_call.h"
#include "softmax/masked_rows.h"
#include "softmax/operations.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// The attributes of a call.
struct PartAttributes {
  std::string_view operation;
  double scale;  // of attention scores
  bool has_mask;
};

struct PartCall {
  Operation operation;
  const void* second = nullptr;  // beside the first operand
  MaskedRows attention = {};
};

// {maximum, sum} of every row of `x`, in the type that it is computed in.
inline ffi::Error CheckStatistics(std::string_view operation, const ffi::AnyBuffer& statistics,
                                  const ffi::AnyBuffer& x) {
  const bool is_double = x.element_type() == ffi::DataType::F64;
  if (statistics.element_type() != (is_double ? ffi::DataType::F64 : ffi::DataType::F32)) {
    return MismatchError(operation, "the statistics", "dtype", is_double ? "float64" : "float32",
                         DTypeName(statistics.element_type()));
  }
  const ffi::AnyBuffer::Dimensions dims = statistics.dimensions(), full = x.dimensions();
  bool fits = dims.size() == full.size() && dims.back() == 2;
  for (std::size_t i = 0; fits && i + 1 < full.size(); ++i) fits = dims[i] == full[i];
  if (fits) return ffi::Error::Success();
  return MismatchError(operation, "the statistics", "shape",
                       ShapeText(full) + " with 2 in place of the last dimension", ShapeText(dims));
}

// `rest`: the operands behind the first, as the whole operation has them.
inline ffi::Error ReadPart(const PartAttributes& attributes, const ffi::AnyBuffer& x,
                           const ffi::RemainingArgs& rest, const ffi::AnyBuffer& statistics,
                           PartCall* call) {
  if (!ParseName(attributes.operation, &call->operation)) {
    return ffi::Error::InvalidArgument("unknown operation '" + std::string(attributes.operation) +
                                       "'");
  }
  const Operation operation = call->operation;
  const NamedBuffer first = {"the first operand", x};
  ffi::Error error = CheckRowOperation(NameOf(operation), {first}, x);
  if (error.success() && x.dimensions().back() == 0) {
    error = MismatchError(NameOf(operation), first.name, "columns", "1 or more", "0");
  }
  if (error.success()) error = CheckStatistics(NameOf(operation), statistics, x);
  if (error.success() && Hides(operation)) {
    constexpr int64_t kNone = MaskedRows::kUnbounded;
    const AttentionAttributes open = {attributes.scale, -kNone, kNone, false};
    error = ReadAttentionRows(operation, first, open, &call->attention);
  }
  if (error.failure()) return error;
  if (HasMask(operation)) {
    const bool has_bias = operation == Operation::kBiasedSoftmaxForward;
    return ReadMaskAndBias(operation, x, rest, attributes.has_mask, has_bias, &call->attention,
                           &call->second);
  }
  const std::size_t others = InputsOf(operation) - 1;
  if (rest.size() != others) {
    return MismatchError(NameOf(operation), "the operands", "number", std::to_string(1 + others),
                         std::to_string(1 + rest.size()));
  }
  if (others == 0) return ffi::Error::Success();
  const ffi::ErrorOr<ffi::AnyBuffer> second = rest.get<ffi::AnyBuffer>(0);
  if (!second) return second.error();
  call->second = second->untyped_data();
  return CheckSameAs(NameOf(operation), {"the second operand", *second}, first);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_PART_CALL_H_
