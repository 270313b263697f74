// The calls of the operations on attention scores: what their buffers and attributes must look
// like, on the CPU and on CUDA alike.
//
// Owns: the way from operands that broadcast to MaskedRows. Must not know: any device.
#ifndef JAXKERNELS_SOFTMAX_ATTENTION_CALL_H_
#define JAXKERNELS_SOFTMAX_ATTENTION_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/checks.h"
#include "softmax/masked_rows.h"
#include "softmax/operations.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// The attributes of a call.
struct AttentionAttributes {
  double scale;
  int64_t left, right;  // row i of a matrix sees columns i + left .. i + right,
  bool from_end;        // counted from the last row and column instead of the first
};

// A mask or a bias: the dimensions of the scores, or 1, and all columns.
inline ffi::Error ReadBroadcastRows(Operation operation, const NamedBuffer& operand,
                                    const ffi::AnyBuffer& scores, BroadcastRows* rows) {
  const ffi::AnyBuffer::Dimensions full = scores.dimensions(), dims = operand.buffer.dimensions();
  bool fits = dims.size() == full.size() && dims.back() == full.back();
  for (std::size_t i = 0; fits && i < full.size(); ++i) fits = dims[i] == full[i] || dims[i] == 1;
  if (!fits) {
    return MismatchError(NameOf(operation), operand.name, "shape",
                         ShapeText(full) + ", or 1 in place of a dimension but the last",
                         ShapeText(dims));
  }
  if (MakeBroadcastRows(full.begin(), dims.begin(), full.size() - 1, rows)) {
    return ffi::Error::Success();
  }
  return MismatchError(NameOf(operation), operand.name, "shape",
                       "dimensions that broadcast and do not by turns at most " +
                           std::to_string(BroadcastRows::kMaxDims) + " times",
                       ShapeText(dims));
}

// Scores are matrices of rows; indices are compared as integers of 32 bits.
inline ffi::Error ReadAttentionRows(Operation operation, const NamedBuffer& scores,
                                    const AttentionAttributes& attributes, MaskedRows* rows) {
  constexpr int64_t kNone = MaskedRows::kUnbounded, kMost = kNone - 1;
  const ffi::AnyBuffer::Dimensions dims = scores.buffer.dimensions();
  if (dims.size() < 2) {
    return MismatchError(NameOf(operation), scores.name, "rank", "2 or more",
                         std::to_string(dims.size()));
  }
  const int64_t q = dims[dims.size() - 2], k = dims.back();
  const auto is_none = [](int64_t distance) { return distance <= -kNone || distance >= kNone; };
  const bool has_band = !is_none(attributes.left) || !is_none(attributes.right);
  if (k > kMost || (has_band && q > kMost)) {
    return MismatchError(NameOf(operation), scores.name, "shape",
                         "columns, and rows that a band counts, fewer than 2^30", ShapeText(dims));
  }
  const auto bound = [&](int64_t distance, int none) {
    if (is_none(distance)) return none;
    const int64_t from_first = distance + (attributes.from_end ? k - q : 0);
    return static_cast<int>(std::clamp(from_first, -kMost, kMost));
  };
  rows->scale = attributes.scale;
  rows->by_q = Divider(std::max<int64_t>(q, 1), RowShapeOf(scores.buffer).rows);
  rows->left = bound(attributes.left, -MaskedRows::kUnbounded);
  rows->right = bound(attributes.right, MaskedRows::kUnbounded);
  return ffi::Error::Success();
}

// The mask and the bias that may follow the scores, in this order.
inline ffi::Error ReadMaskAndBias(Operation operation, const ffi::AnyBuffer& scores,
                                  const ffi::RemainingArgs& rest, bool has_mask, bool has_bias,
                                  MaskedRows* rows, const void** bias) {
  if (static_cast<int>(rest.size()) != int{has_mask} + int{has_bias}) {
    return MismatchError(NameOf(operation), "the operands", "number",
                         std::to_string(1 + int{has_mask} + int{has_bias}),
                         std::to_string(1 + rest.size()));
  }
  if (has_mask) {
    const ffi::ErrorOr<ffi::AnyBuffer> mask = rest.get<ffi::AnyBuffer>(0);
    if (!mask) return mask.error();
    if (mask->element_type() != ffi::DataType::PRED) {
      return MismatchError(NameOf(operation), "mask", "dtype", "bool",
                           DTypeName(mask->element_type()));
    }
    ffi::Error error = ReadBroadcastRows(operation, {"mask", *mask}, scores, &rows->mask_rows);
    if (error.failure()) return error;
    rows->mask = static_cast<const uint8_t*>(mask->untyped_data());
  }
  if (has_bias) {
    const ffi::ErrorOr<ffi::AnyBuffer> found = rest.get<ffi::AnyBuffer>(has_mask ? 1 : 0);
    if (!found) return found.error();
    if (found->element_type() != scores.element_type()) {
      return MismatchError(NameOf(operation), "bias", "dtype",
                           DTypeName(scores.element_type()) + " as scores has",
                           DTypeName(found->element_type()));
    }
    ffi::Error error = ReadBroadcastRows(operation, {"bias", *found}, scores, &rows->bias_rows);
    if (error.failure()) return error;
    *bias = found->untyped_data();
  }
  return ffi::Error::Success();
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_ATTENTION_CALL_H_
