// The FFI handler of attention on tensor cores.
//
// Owns: the parser of a call with its checks, and the path to a plan and a launch. Must not know: how
// a kernel works. The handler never allocates or synchronises, so that CUDA graphs can capture it. The
// scratch is the third result, which XLA allocates.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/launch.h"
#include "attention/plan.h"
#include "core/checks.h"
#include "core/device_query.h"
#include "core/shape_text.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

constexpr const char* kName = "attention";

using Shape = std::vector<int64_t>;

ffi::Error Explain(const std::string& problem) {
  return ffi::Error::InvalidArgument(std::string(kName) + ": " + problem);
}

Shape ShapeOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().end()};
}

ffi::Error CheckType(const NamedBuffer& buffer, ffi::DataType type, const char* name) {
  const ffi::DataType got = buffer.buffer.element_type();
  if (got == type) return ffi::Error::Success();
  return MismatchError(kName, buffer.name, "dtype", name, DTypeName(got));
}

ffi::Error CheckShape(const NamedBuffer& buffer, const Shape& shape) {
  const Shape got = ShapeOf(buffer.buffer);
  if (got == shape) return ffi::Error::Success();
  return MismatchError(kName, buffer.name, "shape", ShapeText(shape), ShapeText(got));
}

// ReadSide reads a bias or a mask: an operand of rank 4 that broadcasts to `scores`.
template <typename T>
ffi::Error ReadSide(const NamedBuffer& side, const Shape& scores, ScoreOperand<T>* operand) {
  const Shape shape = ShapeOf(side.buffer);
  bool fits = shape.size() == scores.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] == 1 || shape[i] == scores[i];
    operand->shape[i] = shape[i];
  }
  if (!fits) {
    return MismatchError(kName, side.name, "shape", "one that broadcasts to " + ShapeText(scores),
                         ShapeText(shape));
  }
  operand->data = static_cast<const T*>(side.buffer.untyped_data());
  return ffi::Error::Success();
}

// ReadRest reads the operands after q, k and v, in the order of their flags.
ffi::Error ReadRest(const ffi::RemainingArgs& rest, const AttentionProblem& problem, bool has_bias,
                    bool has_mask, bool has_q_lengths, bool has_k_lengths, AttentionCall* call) {
  const Shape scores = {problem.batch, problem.heads, problem.queries, problem.keys};
  std::size_t next = 0;
  ffi::Error error = ffi::Error::Success();
  const auto read = [&](bool present, const char* name, ffi::DataType type, const char* type_name,
                        auto&& take) {
    if (!present || error.failure()) return;
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = rest.get<ffi::AnyBuffer>(next++);
    if (!buffer) {
      error = buffer.error();
      return;
    }
    const NamedBuffer named = {name, *buffer};
    error = CheckType(named, type, type_name);
    if (error.success()) error = take(named);
  };
  const auto read_lengths = [&](const int32_t** lengths) {
    return [&problem, lengths](const NamedBuffer& named) {
      *lengths = static_cast<const int32_t*>(named.buffer.untyped_data());
      return CheckShape(named, {problem.batch});
    };
  };
  read(has_bias, "bias", ffi::DataType::F32, "float32",
       [&](const NamedBuffer& named) { return ReadSide(named, scores, &call->bias); });
  read(has_mask, "mask", ffi::DataType::PRED, "bool",
       [&](const NamedBuffer& named) { return ReadSide(named, scores, &call->mask); });
  read(has_q_lengths, "q_lengths", ffi::DataType::S32, "int32", read_lengths(&call->q_lengths));
  read(has_k_lengths, "k_lengths", ffi::DataType::S32, "int32", read_lengths(&call->k_lengths));
  if (error.success() && next != rest.size()) return Explain("more operands than flags");
  return error;
}

ffi::Error ReadProblem(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k, const ffi::AnyBuffer& v,
                       AttentionProblem* problem) {
  for (const NamedBuffer& buffer : {NamedBuffer{"q", q}, {"k", k}, {"v", v}}) {
    if (ffi::Error error = CheckType(buffer, ffi::DataType::F32, "float32"); error.failure()) {
      return error;
    }
    if (ShapeOf(buffer.buffer).size() != 4) return Explain("q, k and v need rank 4");
  }
  const Shape of_q = ShapeOf(q), of_k = ShapeOf(k), of_v = ShapeOf(v);
  if (ffi::Error error = CheckShape({"k", k}, {of_q[0], of_k[1], of_k[2], of_q[3]});
      error.failure()) {
    return error;
  }
  *problem = {.batch = of_q[0],
              .queries = of_q[1],
              .keys = of_k[1],
              .heads = of_q[2],
              .key_heads = of_k[2],
              .depth = of_q[3],
              .value_depth = of_v[3]};
  return CheckShape({"v", v}, {of_k[0], of_k[1], of_k[2], of_v[3]});
}

ffi::Error Attend(cudaStream_t stream, int32_t ordinal, const ffi::AnyBuffer& q,
                  const ffi::AnyBuffer& k, const ffi::AnyBuffer& v, const ffi::RemainingArgs& rest,
                  ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> row_sums,
                  ffi::Result<ffi::AnyBuffer> scratch, float scale, int64_t left, int64_t right,
                  bool has_bias, bool has_mask, bool has_q_lengths, bool has_k_lengths) {
  AttentionProblem problem;
  AttentionCall call = {};
  ffi::Error error = ReadProblem(q, k, v, &problem);
  if (error.success()) {
    error = ReadRest(rest, problem, has_bias, has_mask, has_q_lengths, has_k_lengths, &call);
  }
  const Shape shape = {problem.batch, problem.queries, problem.heads, problem.value_depth};
  const Shape shape_of_sums = {problem.batch, problem.heads, problem.queries, 2};
  if (error.success()) error = CheckShape({"the result", *out}, shape);
  if (error.success()) error = CheckShape({"the row sums", *row_sums}, shape_of_sums);
  for (const NamedBuffer& result : {NamedBuffer{"the result", *out}, {"the row sums", *row_sums}}) {
    if (error.success()) error = CheckType(result, ffi::DataType::F32, "float32");
  }
  if (error.failure()) return error;
  if (!(scale > 0.0f)) return Explain("the scale must be positive");
  const DeviceLimitsResult found = LimitsOfDevice(ordinal);
  if (found.limits == nullptr) {
    return ffi::Error(ffi::ErrorCode::kUnavailable, std::string(kName) + ": " + found.error);
  }
  const AttentionPlanResult planned = PlanAttention(problem, *found.limits);
  if (!planned.error.empty()) return Explain(planned.error);
  if (static_cast<int64_t>(scratch->size_bytes()) < planned.plan.scratch_bytes ||
      reinterpret_cast<std::uintptr_t>(scratch->untyped_data()) % 16 != 0) {
    return Explain("the scratch needs " + std::to_string(planned.plan.scratch_bytes) +
                   " bytes from a multiple of 16 on, and has " +
                   std::to_string(scratch->size_bytes()));
  }
  call.q = static_cast<const float*>(q.untyped_data());
  call.k = static_cast<const float*>(k.untyped_data());
  call.v = static_cast<const float*>(v.untyped_data());
  call.scale = scale;
  const auto bound = [](int64_t side) {
    return static_cast<int>(std::clamp<int64_t>(side, -kOpenBand, kOpenBand));
  };
  call.band = {.left = bound(left), .right = bound(right)};
  call.out = static_cast<float*>(out->untyped_data());
  call.row_sums = static_cast<float*>(row_sums->untyped_data());
  call.scratch = static_cast<char*>(scratch->untyped_data());
  const cudaError_t status = LaunchAttention(problem, planned.plan, call, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal("attention: the launch of " + TextOf(planned.plan) +
                              " failed: " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsAttentionCuda, Attend,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("left")
                                  .Attr<int64_t>("right")
                                  .Attr<bool>("has_bias")
                                  .Attr<bool>("has_mask")
                                  .Attr<bool>("has_q_lengths")
                                  .Attr<bool>("has_k_lengths"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxkernels
