#include "rows/read_call.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace jaxkernels {
namespace {

constexpr int64_t kNone = MaskedRows::kUnbounded;
// The columns that rows with labels have at most: those of the pack behind them have numbers too.
constexpr int64_t kMostLabelled = INT32_MAX - 63;

// What a call says besides its buffers.
struct RowAttributes {
  std::string_view operation;
  double scale;
  bool has_mask, all_sums;
  std::string_view tier = NameOf(Tier::kAuto);
  int64_t left = -kNone, right = kNone;
  bool from_end = false;

  bool HasLeft() const { return left > -kNone && left < kNone; }
  bool HasRight() const { return right > -kNone && right < kNone; }
  bool HasBand() const { return HasLeft() || HasRight(); }
};

ffi::Error Refuse(const OperationTraits& traits, const std::string& why) {
  return ffi::Error::InvalidArgument(std::string(traits.name) + ": " + why);
}

ffi::Error ReadNames(const RowAttributes& attributes, RowCall* call) {
  if (!ParseName(attributes.operation, &call->operation)) {
    return ffi::Error::InvalidArgument("unknown operation '" + std::string(attributes.operation) +
                                       "'");
  }
  const OperationTraits& traits = TraitsOf(call->operation);
  if (!ParseName(attributes.tier, &call->tier)) {
    return Refuse(traits, "unknown tier '" + std::string(attributes.tier) + "'");
  }
  if (attributes.has_mask && !traits.has_mask) return Refuse(traits, "it takes no mask");
  if (!traits.hides && (attributes.scale != 1 || attributes.HasBand())) {
    return Refuse(traits, "it takes no scale and no band");
  }
  call->all_sums = attributes.all_sums;
  return ffi::Error::Success();
}

// Whether an array has `count` numbers for each row of one of the shape `full`.
bool IsPerRow(const ffi::AnyBuffer::Dimensions& dims, const ffi::AnyBuffer::Dimensions& full,
              int count) {
  bool fits = dims.size() == full.size() && dims.back() == count;
  for (std::size_t i = 0; fits && i + 1 < full.size(); ++i) fits = dims[i] == full[i];
  return fits;
}

std::string PerRowText(const ffi::AnyBuffer::Dimensions& full, int count) {
  return ShapeText(full) + " with " + std::to_string(count) + " in place of the last dimension";
}

// `count` numbers for each row of `x`, of its dtype or of the type that it is computed in.
ffi::Error ReadRowScalars(const OperationTraits& traits, const NamedBuffer& scalars, int count,
                          const NamedBuffer& x, RowScalars* read) {
  const ffi::AnyBuffer::Dimensions full = x.buffer.dimensions();
  const ffi::DataType of_x = x.buffer.element_type(), got = scalars.buffer.element_type();
  const bool wide = of_x != ffi::DataType::F64 && got == ffi::DataType::F32;
  if (got != of_x && !wide) {
    return MismatchError(traits.name, scalars.name, "dtype", DTypeName(of_x) + " or float32",
                         DTypeName(got));
  }
  if (!IsPerRow(scalars.buffer.dimensions(), full, count)) {
    return MismatchError(traits.name, scalars.name, "shape", PerRowText(full, count),
                         ShapeText(scalars.buffer.dimensions()));
  }
  *read = {scalars.buffer.untyped_data(), wide};
  return ffi::Error::Success();
}

// A column for each row of `x`. Columns are counted in 32 bits.
ffi::Error ReadLabels(const OperationTraits& traits, const ffi::AnyBuffer& labels,
                      const NamedBuffer& x, RowCall* call) {
  const ffi::AnyBuffer::Dimensions full = x.buffer.dimensions();
  if (labels.element_type() != ffi::DataType::S32) {
    return MismatchError(traits.name, "the labels", "dtype", "int32",
                         DTypeName(labels.element_type()));
  }
  if (!IsPerRow(labels.dimensions(), full, 1)) {
    return MismatchError(traits.name, "the labels", "shape", PerRowText(full, 1),
                         ShapeText(labels.dimensions()));
  }
  if (full.back() > kMostLabelled) {
    return MismatchError(traits.name, x.name, "columns", "2^31 - 64 or fewer",
                         std::to_string(full.back()));
  }
  call->labels = static_cast<const int32_t*>(labels.untyped_data());
  return ffi::Error::Success();
}

// {maximum, sums} of every row of `x`, in the type that it is computed in.
ffi::Error CheckStatistics(const OperationTraits& traits, const ffi::AnyBuffer& statistics,
                           const NamedBuffer& x) {
  const ffi::AnyBuffer::Dimensions dims = statistics.dimensions(), full = x.buffer.dimensions();
  const bool is_double = x.buffer.element_type() == ffi::DataType::F64;
  if (statistics.element_type() != (is_double ? ffi::DataType::F64 : ffi::DataType::F32)) {
    return MismatchError(traits.name, "the statistics", "dtype", is_double ? "float64" : "float32",
                         DTypeName(statistics.element_type()));
  }
  const int size = 1 + SumsOf(traits, ffi::ByteWidth(x.buffer.element_type()));
  if (IsPerRow(dims, full, size)) return ffi::Error::Success();
  return MismatchError(traits.name, "the statistics", "shape", PerRowText(full, size),
                       ShapeText(dims));
}

// A row of no columns has no statistics, and nothing that follows from them.
ffi::Error CheckHasColumns(const OperationTraits& traits, const NamedBuffer& x) {
  if (x.buffer.dimensions().back() > 0) return ffi::Error::Success();
  return MismatchError(traits.name, x.name, "columns", "1 or more", "0");
}

// The results: as many elements as `x` has, numbers for each of its rows, or both.
struct Results {
  std::optional<ffi::AnyBuffer> elements, scalars;
};

// Whether the result may have the dtype that it has, other than that of `x`.
bool IsNarrowed(const RowCall& call, ffi::DataType result) {
  const bool is_half = result == ffi::DataType::BF16 || result == ffi::DataType::F16;
  return is_half && call.dtype == DType::kFloat32 && call.part == Part::kWhole &&
         MayNarrow(TraitsOf(call.operation));
}

ffi::Error ReadResults(const OperationTraits& traits, const Results& results, const NamedBuffer& x,
                       RowCall* call) {
  ffi::Error error = ffi::Error::Success();
  call->result_dtype = call->dtype;
  if (results.elements) {
    const NamedBuffer elements = {"the result", *results.elements};
    const ffi::DataType dtype = elements.buffer.element_type();
    call->arrays.out = elements.buffer.untyped_data();
    if (IsNarrowed(*call, dtype)) {
      call->result_dtype = *ToDType(dtype);
      error = CheckSameShape(traits.name, elements, x);
    } else {
      error = CheckSameAs(traits.name, elements, x);
    }
  }
  if (error.success() && results.scalars) {
    error = ReadRowScalars(traits, {"the result", *results.scalars}, traits.stores, x,
                           &call->scalars_out);
  }
  return error;
}

// A mask or a bias: the dimensions of the scores, or 1, and all columns.
ffi::Error ReadBroadcastRows(const OperationTraits& traits, const NamedBuffer& operand,
                             const ffi::AnyBuffer& scores, BroadcastRows* rows) {
  const ffi::AnyBuffer::Dimensions full = scores.dimensions(), dims = operand.buffer.dimensions();
  bool fits = dims.size() == full.size() && dims.back() == full.back();
  for (std::size_t i = 0; fits && i < full.size(); ++i) fits = dims[i] == full[i] || dims[i] == 1;
  if (!fits) {
    return MismatchError(traits.name, operand.name, "shape",
                         ShapeText(full) + ", or 1 in place of a dimension but the last",
                         ShapeText(dims));
  }
  if (MakeBroadcastRows(full.begin(), dims.begin(), full.size() - 1, rows)) {
    return ffi::Error::Success();
  }
  return MismatchError(traits.name, operand.name, "shape",
                       "dimensions that broadcast and do not by turns at most " +
                           std::to_string(BroadcastRows::kMaxDims) + " times",
                       ShapeText(dims));
}

// Scores are matrices of rows; indices are compared as integers of 32 bits.
ffi::Error ReadScaleAndBand(const OperationTraits& traits, const RowAttributes& attributes,
                            const NamedBuffer& scores, MaskedRows* rows) {
  constexpr int64_t kMost = kNone - 1;
  const ffi::AnyBuffer::Dimensions dims = scores.buffer.dimensions();
  if (dims.size() < 2) {
    return MismatchError(traits.name, scores.name, "rank", "2 or more",
                         std::to_string(dims.size()));
  }
  const int64_t q = dims[dims.size() - 2], k = dims.back();
  if (k > kMost || (attributes.HasBand() && q > kMost)) {
    return MismatchError(traits.name, scores.name, "shape",
                         "columns, and rows that a band counts, fewer than 2^30", ShapeText(dims));
  }
  const auto bound = [&](int64_t distance) {
    const int64_t from_first = distance + (attributes.from_end ? k - q : 0);
    return static_cast<int>(std::clamp(from_first, -kMost, kMost));
  };
  rows->scale = attributes.scale;
  rows->by_q = Divider(std::max<int64_t>(q, 1), RowShapeOf(scores.buffer).rows);
  if (attributes.HasLeft()) rows->left = bound(attributes.left);
  if (attributes.HasRight()) rows->right = bound(attributes.right);
  return ffi::Error::Success();
}

ffi::Error ReadMask(const OperationTraits& traits, const ffi::AnyBuffer& mask,
                    const ffi::AnyBuffer& scores, MaskedRows* rows) {
  if (mask.element_type() != ffi::DataType::PRED) {
    return MismatchError(traits.name, "mask", "dtype", "bool", DTypeName(mask.element_type()));
  }
  rows->mask = static_cast<const uint8_t*>(mask.untyped_data());
  return ReadBroadcastRows(traits, {"mask", mask}, scores, &rows->mask_rows);
}

// The second input: of the shape of the first, or a bias.
ffi::Error ReadSecond(const OperationTraits& traits, const NamedBuffer& second,
                      const NamedBuffer& first, RowCall* call) {
  call->arrays.in[1] = second.buffer.untyped_data();
  if (traits.shares_rows) return CheckSameAs(traits.name, second, first);
  const ffi::DataType wanted = first.buffer.element_type(), got = second.buffer.element_type();
  if (got != wanted) {
    return MismatchError(traits.name, second.name, "dtype",
                         DTypeName(wanted) + " as " + std::string(first.name) + " has",
                         DTypeName(got));
  }
  return ReadBroadcastRows(traits, second, first.buffer, &call->attention.bias_rows);
}

// `statistics`: null where the part has none.
ffi::Error ReadCall(Part part, const RowAttributes& attributes, const ffi::RemainingArgs& operands,
                    const Results& results, const ffi::AnyBuffer* statistics, RowCall* call) {
  const OperationTraits& traits = TraitsOf(call->operation);
  if (!HasPart(traits, part)) {
    return Refuse(traits, traits.stores_elements ? "it has no parts"
                                                 : "its result follows from the statistics alone");
  }
  const bool is_statistics = part == Part::kStatistics;
  const bool takes_label = traits.takes_label && !is_statistics;
  const std::size_t second_at = attributes.has_mask ? 2 : 1;
  const std::size_t label_at = second_at + traits.inputs - 1;
  const std::size_t scalars_at = label_at + (takes_label ? 1 : 0);
  std::size_t number = scalars_at;
  for (const int count : traits.takes) number += count > 0 && !is_statistics ? 1 : 0;
  if (operands.size() != number) {
    return MismatchError(traits.name, "the operands", "number", std::to_string(number),
                         std::to_string(operands.size()));
  }
  const ffi::ErrorOr<ffi::AnyBuffer> first = operands.get<ffi::AnyBuffer>(0);
  if (!first) return first.error();
  const NamedBuffer x = {traits.input_names[0], *first};
  ffi::Error error = CheckDType(traits.name, x);
  if (error.success()) error = CheckHasRows(traits.name, x);
  if (error.failure()) return error;

  const RowShape shape = RowShapeOf(x.buffer);
  call->part = part;
  call->dtype = *ToDType(x.buffer.element_type());
  call->arrays = {{x.buffer.untyped_data(), nullptr}, nullptr, shape.rows, shape.cols};
  if (statistics != nullptr || traits.stores > 0) error = CheckHasColumns(traits, x);
  if (error.success() && traits.inputs == 2) {
    const ffi::ErrorOr<ffi::AnyBuffer> second = operands.get<ffi::AnyBuffer>(second_at);
    error = second ? ReadSecond(traits, {traits.input_names[1], *second}, x, call) : second.error();
  }
  if (error.success()) error = ReadResults(traits, results, x, call);
  if (error.success() && statistics != nullptr) {
    call->statistics = statistics->untyped_data();
    error = CheckStatistics(traits, *statistics, x);
  }
  if (error.success() && traits.hides) {
    error = ReadScaleAndBand(traits, attributes, x, &call->attention);
  }
  if (error.success() && attributes.has_mask) {
    const ffi::ErrorOr<ffi::AnyBuffer> mask = operands.get<ffi::AnyBuffer>(1);
    error = mask ? ReadMask(traits, *mask, x.buffer, &call->attention) : mask.error();
  }
  if (error.success() && takes_label) {
    const ffi::ErrorOr<ffi::AnyBuffer> labels = operands.get<ffi::AnyBuffer>(label_at);
    error = labels ? ReadLabels(traits, *labels, x, call) : labels.error();
  }
  for (std::size_t at = scalars_at; error.success() && at < number; ++at) {
    const std::size_t i = at - scalars_at;
    const ffi::ErrorOr<ffi::AnyBuffer> scalars = operands.get<ffi::AnyBuffer>(at);
    error = scalars ? ReadRowScalars(traits, {"the row scalars", *scalars}, traits.takes[i], x,
                                     &call->scalars_in[i])
                    : scalars.error();
  }
  return error;
}

}  // namespace

ffi::Error ReadWhole(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                     std::string_view operation, std::string_view tier, double scale, int64_t left,
                     int64_t right, bool from_end, bool has_mask, bool all_sums, RowCall* call) {
  const RowAttributes attributes = {operation, scale, has_mask, all_sums,
                                    tier,      left,  right,    from_end};
  if (ffi::Error error = ReadNames(attributes, call); error.failure()) return error;
  const OperationTraits& traits = TraitsOf(call->operation);
  const std::size_t stored = (traits.stores_elements ? 1 : 0) + (traits.stores > 0 ? 1 : 0);
  if (results.size() != stored) {
    return MismatchError(traits.name, "the results", "number", std::to_string(stored),
                         std::to_string(results.size()));
  }
  // Elements come first, then row scalars.
  Results read;
  for (std::size_t i = 0; i < results.size(); ++i) {
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> one = results.get<ffi::AnyBuffer>(i);
    if (!one) return one.error();
    (i == 0 && traits.stores_elements ? read.elements : read.scalars) = **one;
  }
  return ReadCall(Part::kWhole, attributes, operands, read, nullptr, call);
}

ffi::Error ReadStatistics(const ffi::RemainingArgs& operands,
                          ffi::Result<ffi::AnyBuffer> statistics, std::string_view operation,
                          double scale, bool has_mask, bool all_sums, RowCall* call) {
  const RowAttributes attributes = {operation, scale, has_mask, all_sums};
  if (ffi::Error error = ReadNames(attributes, call); error.failure()) return error;
  return ReadCall(Part::kStatistics, attributes, operands, {}, &*statistics, call);
}

ffi::Error ReadFinish(ffi::AnyBuffer statistics, const ffi::RemainingArgs& operands,
                      ffi::Result<ffi::AnyBuffer> result, std::string_view operation, double scale,
                      bool has_mask, bool all_sums, RowCall* call) {
  const RowAttributes attributes = {operation, scale, has_mask, all_sums};
  if (ffi::Error error = ReadNames(attributes, call); error.failure()) return error;
  return ReadCall(Part::kFinish, attributes, operands, {*result, std::nullopt}, &statistics, call);
}

}  // namespace jaxkernels
