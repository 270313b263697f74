#include "rows/read_call.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>

namespace jaxkernels {
namespace {

constexpr int64_t kNone = MaskedRows::kUnbounded;
// Maximum columns that are counted in 32 bits: the indices of the pack after them must fit too.
constexpr int64_t kMostCounted = INT32_MAX - 63;

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
    return Refuse(traits, "unknown tier '" + std::string(attributes.tier) + "'" + kLeaveTierOut);
  }
  if (attributes.has_mask && !traits.HasMask()) return Refuse(traits, "it takes no mask");
  const bool has_scale = !traits.averages && attributes.scale != 1;
  if (!traits.hides && (has_scale || attributes.HasBand())) {
    return Refuse(traits, "it takes no scale and no band");
  }
  call->all_sums = attributes.all_sums;
  if (traits.averages) call->epsilon = attributes.scale;
  return ffi::Error::Success();
}

ffi::Error WrongDType(const OperationTraits& traits, const NamedBuffer& operand,
                      const std::string& expected) {
  return MismatchError(traits.name, operand.name, "dtype", expected,
                       DTypeName(operand.buffer.element_type()));
}
ffi::Error WrongShape(const OperationTraits& traits, const NamedBuffer& operand,
                      const std::string& expected) {
  return MismatchError(traits.name, operand.name, "shape", expected,
                       ShapeText(operand.buffer.dimensions()));
}

ffi::Error CheckDType(const OperationTraits& traits, const NamedBuffer& operand,
                      const NamedBuffer& x) {
  const ffi::DataType wanted = x.buffer.element_type();
  if (operand.buffer.element_type() == wanted) return ffi::Error::Success();
  return WrongDType(traits, operand, DTypeName(wanted) + " as " + std::string(x.name) + " has");
}
ffi::Error CheckShape(const OperationTraits& traits, const NamedBuffer& operand,
                      const NamedBuffer& x) {
  const ffi::AnyBuffer::Dimensions wanted = x.buffer.dimensions();
  if (operand.buffer.dimensions() == wanted) return ffi::Error::Success();
  return WrongShape(traits, operand, ShapeText(wanted) + " as " + std::string(x.name) + " has");
}
ffi::Error CheckElements(const OperationTraits& traits, const NamedBuffer& operand,
                         const NamedBuffer& x) {
  const ffi::Error error = CheckDType(traits, operand, x);
  return error.failure() ? error : CheckShape(traits, operand, x);
}

// Checks that an operand has `count` numbers per row of `x`.
ffi::Error CheckPerRow(const OperationTraits& traits, const NamedBuffer& operand, int count,
                       const NamedBuffer& x) {
  const ffi::AnyBuffer::Dimensions dims = operand.buffer.dimensions(), full = x.buffer.dimensions();
  bool fits = dims.size() == full.size() && dims.back() == count;
  for (std::size_t i = 0; fits && i + 1 < full.size(); ++i) fits = dims[i] == full[i];
  if (fits) return ffi::Error::Success();
  return WrongShape(
      traits, operand,
      ShapeText(full) + " with " + std::to_string(count) + " in place of the last dimension");
}

// Reads whether an operand has the compute type of `x` instead of its dtype.
ffi::Error ReadWidth(const OperationTraits& traits, const NamedBuffer& operand,
                     const NamedBuffer& x, bool* wide) {
  const ffi::DataType of_x = x.buffer.element_type(), got = operand.buffer.element_type();
  *wide = of_x != ffi::DataType::F64 && got == ffi::DataType::F32;
  if (got == of_x || *wide) return ffi::Error::Success();
  return WrongDType(traits, operand, DTypeName(of_x) + " or float32");
}

ffi::Error CheckCounts(const OperationTraits& traits, const NamedBuffer& x) {
  const int64_t cols = x.buffer.dimensions().back();
  if (cols <= kMostCounted) return ffi::Error::Success();
  return MismatchError(traits.name, x.name, "columns", "2^31 - 64 or fewer", std::to_string(cols));
}

ffi::Error ReadRowScalars(const OperationTraits& traits, const NamedBuffer& scalars, int count,
                          const NamedBuffer& x, RowScalars* read) {
  bool wide;
  if (ffi::Error error = ReadWidth(traits, scalars, x, &wide); error.failure()) return error;
  *read = {scalars.buffer.untyped_data(), wide};
  return CheckPerRow(traits, scalars, count, x);
}

ffi::Error ReadColumn(const OperationTraits& traits, const NamedBuffer& column,
                      const NamedBuffer& x, RowColumn* read) {
  const int64_t cols = x.buffer.dimensions().back();
  const ffi::AnyBuffer::Dimensions dims = column.buffer.dimensions();
  bool wide;
  if (ffi::Error error = ReadWidth(traits, column, x, &wide); error.failure()) return error;
  if (dims.size() != 1 || dims[0] != cols) {
    return WrongShape(traits, column, "(" + std::to_string(cols) + ",)");
  }
  *read = {column.buffer.untyped_data(), wide};
  return CheckCounts(traits, x);
}

ffi::Error ReadLabels(const OperationTraits& traits, const NamedBuffer& labels,
                      const NamedBuffer& x, RowCall* call) {
  if (labels.buffer.element_type() != ffi::DataType::S32) {
    return WrongDType(traits, labels, "int32");
  }
  call->labels = static_cast<const int32_t*>(labels.buffer.untyped_data());
  const ffi::Error error = CheckPerRow(traits, labels, 1, x);
  return error.failure() ? error : CheckCounts(traits, x);
}

ffi::Error ReadScales(const OperationTraits& traits, const NamedBuffer& scales,
                      const NamedBuffer& x, RowCall* call) {
  const ffi::AnyBuffer::Dimensions dims = scales.buffer.dimensions();
  const int count = dims.size() > 0 && dims.back() == 2 ? 2 : 1;
  RowScalars read;
  ffi::Error error = ReadRowScalars(traits, scales, count, x, &read);
  if (error.failure()) return error;
  if (!read.wide && IsHalf(call->dtype)) {
    return WrongDType(traits, scales, "float32");
  }
  call->scales = {read.data, count};
  return error;
}

// Reads {maximum, sums} of every row of `x`, in its compute type.
ffi::Error ReadStatisticsOf(const OperationTraits& traits, const ffi::AnyBuffer& buffer,
                            const NamedBuffer& x, RowCall* call) {
  const NamedBuffer statistics = {"the statistics", buffer};
  const ffi::DataType wanted =
      call->dtype == DType::kFloat64 ? ffi::DataType::F64 : ffi::DataType::F32;
  if (buffer.element_type() != wanted) return WrongDType(traits, statistics, DTypeName(wanted));
  call->statistics = buffer.untyped_data();
  return CheckPerRow(traits, statistics, 1 + SumsOf(traits, call->dtype), x);
}

// Whether the result has a half type for float32 scores, which MayNarrow allows.
bool IsNarrowed(const RowCall& call, ffi::DataType result) {
  const bool is_half = result == ffi::DataType::BF16 || result == ffi::DataType::F16;
  return is_half && call.dtype == DType::kFloat32 && call.part == Part::kWhole &&
         MayNarrow(TraitsOf(call.operation));
}

ffi::Error ReadResult(const OperationTraits& traits, const OperandSpec& spec,
                      const ffi::AnyBuffer& buffer, const NamedBuffer& x, RowCall* call) {
  const NamedBuffer result = {"the result", buffer};
  if (spec.role == Role::kRow) {
    return ReadRowScalars(traits, result, spec.count, x, &call->scalars_out);
  }
  call->arrays.out = buffer.untyped_data();
  if (!IsNarrowed(*call, buffer.element_type())) return CheckElements(traits, result, x);
  call->result_dtype = *ToDType(buffer.element_type());
  return CheckShape(traits, result, x);
}

// Reads the shape of a mask or bias: each dimension equals that of the scores or is 1, except the
// columns.
ffi::Error ReadBroadcastRows(const OperationTraits& traits, const NamedBuffer& operand,
                             const ffi::AnyBuffer& scores, BroadcastRows* rows) {
  const ffi::AnyBuffer::Dimensions full = scores.dimensions(), dims = operand.buffer.dimensions();
  bool fits = dims.size() == full.size() && dims.back() == full.back();
  for (std::size_t i = 0; fits && i < full.size(); ++i) fits = dims[i] == full[i] || dims[i] == 1;
  if (!fits) {
    return WrongShape(traits, operand,
                      ShapeText(full) + ", or 1 in place of a dimension but the last");
  }
  if (MakeBroadcastRows(full.begin(), dims.begin(), full.size() - 1, rows)) {
    return ffi::Error::Success();
  }
  return WrongShape(traits, operand,
                    "dimensions that alternate between full and 1 at most " +
                        std::to_string(BroadcastRows::kMaxDims) + " times");
}

// Scores are matrices of rows; indices are compared in 32 bits.
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
    return WrongShape(traits, scores, "fewer than 2^30 columns, and with a band rows");
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

ffi::Error ReadMask(const OperationTraits& traits, const NamedBuffer& mask,
                    const ffi::AnyBuffer& scores, MaskedRows* rows) {
  if (mask.buffer.element_type() != ffi::DataType::PRED) {
    return WrongDType(traits, mask, "bool");
  }
  rows->mask = static_cast<const uint8_t*>(mask.buffer.untyped_data());
  return ReadBroadcastRows(traits, mask, scores, &rows->mask_rows);
}

ffi::Error ReadBias(const OperationTraits& traits, const NamedBuffer& bias,
                    const NamedBuffer& scores, MaskedRows* rows) {
  if (ffi::Error error = CheckDType(traits, bias, scores); error.failure()) return error;
  return ReadBroadcastRows(traits, bias, scores.buffer, &rows->bias_rows);
}

// Reads an operand after the first. `number` is its index among the operands of its role.
ffi::Error ReadOperand(const OperationTraits& traits, const OperandSpec& spec, int number,
                       const ffi::AnyBuffer& buffer, const NamedBuffer& x, RowCall* call) {
  const NamedBuffer operand = {spec.name, buffer};
  switch (spec.role) {
    case Role::kElements:
      call->arrays.in[number] = buffer.untyped_data();
      return CheckElements(traits, operand, x);
    case Role::kBroadcast:
      call->arrays.in[1] = buffer.untyped_data();
      return ReadBias(traits, operand, x, &call->masking);
    case Role::kMask:
      return ReadMask(traits, operand, x.buffer, &call->masking);
    case Role::kLabel:
      return ReadLabels(traits, operand, x, call);
    case Role::kRow:
      return ReadRowScalars(traits, operand, spec.count, x, &call->scalars_in[number]);
    case Role::kScales:
      return ReadScales(traits, operand, x, call);
    case Role::kColumn:
      return ReadColumn(traits, operand, x, &call->column);
  }
  return ffi::Error::Success();
}

// Whether a call of a part has this operand. Statistics take no labels and no row scalars.
bool IsPresent(const OperandSpec& spec, Part part, bool has_mask, bool has_scales) {
  if (spec.role == Role::kMask) return has_mask;
  if (spec.role == Role::kScales) return has_scales;
  const bool is_of_row = spec.role == Role::kLabel || spec.role == Role::kRow;
  return !is_of_row || part != Part::kStatistics;
}

// `statistics`: the output of kStatistics, an input of kFinish, null for kWhole. `results`: in
// table order.
ffi::Error ReadCall(Part part, const RowAttributes& attributes, const ffi::RemainingArgs& operands,
                    std::initializer_list<std::optional<ffi::AnyBuffer>> results,
                    const ffi::AnyBuffer* statistics, RowCall* call) {
  const OperationTraits& traits = TraitsOf(call->operation);
  if (!HasPart(traits, part)) {
    return Refuse(traits, traits.StoresElements() ? "it has no parts"
                                                  : "its result follows from the statistics alone");
  }
  std::size_t expected = 0;
  for (const OperandSpec& spec : traits.operands) {
    expected += IsPresent(spec, part, attributes.has_mask, false) ? 1 : 0;
  }
  // The number of operands says whether there are scales. An attribute would be missing in programs
  // that were exported before.
  const bool has_scales = traits.TakesScales() && operands.size() > expected;
  expected += has_scales ? 1 : 0;
  if (operands.size() != expected) {
    return MismatchError(traits.name, "the operands", "number", std::to_string(expected),
                         std::to_string(operands.size()));
  }
  const ffi::ErrorOr<ffi::AnyBuffer> first = operands.get<ffi::AnyBuffer>(0);
  if (!first) return first.error();
  const NamedBuffer x = {traits.operands.begin()->name, *first};
  const std::optional<DType> dtype = ToDType(x.buffer.element_type());
  if (!dtype) return WrongDType(traits, x, "float32, bfloat16, float16 or float64");
  if (x.buffer.dimensions().size() == 0) {
    return MismatchError(traits.name, x.name, "rank", "1 or more", "0");
  }
  ffi::Error error = ffi::Error::Success();

  const RowShape shape = RowShapeOf(x.buffer);
  call->part = part;
  call->dtype = call->result_dtype = *dtype;
  call->arrays = {{x.buffer.untyped_data(), nullptr}, nullptr, shape.rows, shape.cols};
  if ((statistics != nullptr || traits.Stores() > 0) && shape.cols == 0) {  // no statistics
    error = MismatchError(traits.name, x.name, "columns", "1 or more", "0");
  }
  const OperandSpec* result = traits.results.begin();
  for (const std::optional<ffi::AnyBuffer>& buffer : results) {
    if (error.success() && buffer) error = ReadResult(traits, *result++, *buffer, x, call);
  }
  if (error.success() && statistics != nullptr) {
    error = ReadStatisticsOf(traits, *statistics, x, call);
  }
  if (error.success() && traits.hides) {
    error = ReadScaleAndBand(traits, attributes, x, &call->masking);
  }
  std::size_t at = 0;
  int numbers[std::size(kRoleNames)] = {};
  for (const OperandSpec& spec : traits.operands) {
    if (!IsPresent(spec, part, attributes.has_mask, has_scales)) continue;
    const int number = numbers[static_cast<std::size_t>(spec.role)]++;
    if (at > 0 && error.success()) {
      const ffi::ErrorOr<ffi::AnyBuffer> operand = operands.get<ffi::AnyBuffer>(at);
      error = operand ? ReadOperand(traits, spec, number, *operand, x, call) : operand.error();
    }
    ++at;
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
  if (results.size() != traits.results.size()) {
    return MismatchError(traits.name, "the results", "number",
                         std::to_string(traits.results.size()), std::to_string(results.size()));
  }
  std::optional<ffi::AnyBuffer> read[2];
  for (std::size_t i = 0; i < results.size(); ++i) {
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> one = results.get<ffi::AnyBuffer>(i);
    if (!one) return one.error();
    read[i] = **one;
  }
  return ReadCall(Part::kWhole, attributes, operands, {read[0], read[1]}, nullptr, call);
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
  return ReadCall(Part::kFinish, attributes, operands, {*result}, &statistics, call);
}

}  // namespace jaxkernels
