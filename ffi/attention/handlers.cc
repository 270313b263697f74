// The FFI handlers of attention on tensor cores.
//
// Owns: the parser of a call with its checks, and the path to a plan and a launch. Must not know:
// how a kernel works. Handlers never allocate or synchronise, so that CUDA graphs can capture it.
// The scratch is the last result, which XLA allocates.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
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

// Flags tells which operands follow q, k and v.
struct Flags {
  bool bias, mask, q_lengths, k_lengths;
};

// OperandReader reads the operands after q, k and v one after the other, and keeps the first error.
struct OperandReader {
  const ffi::RemainingArgs& rest;
  std::size_t next = 0;
  ffi::Error error = ffi::Error::Success();

  template <typename Take>
  void Read(const char* name, ffi::DataType type, const char* type_name, Take take) {
    if (error.failure()) return;
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = rest.get<ffi::AnyBuffer>(next++);
    if (!buffer) {
      error = buffer.error();
      return;
    }
    const NamedBuffer named = {name, *buffer};
    error = CheckType(named, type, type_name);
    if (error.success()) error = take(named);
  }

  void ReadArray(const char* name, const Shape& shape, const float** data) {
    Read(name, ffi::DataType::F32, "float32", [&](const NamedBuffer& named) {
      *data = static_cast<const float*>(named.buffer.untyped_data());
      return CheckShape(named, shape);
    });
  }

  void ReadLengths(const char* name, int64_t batch, const int32_t** lengths) {
    Read(name, ffi::DataType::S32, "int32", [&](const NamedBuffer& named) {
      *lengths = static_cast<const int32_t*>(named.buffer.untyped_data());
      return CheckShape(named, {batch});
    });
  }

  void ReadSides(const AttentionProblem& problem, const Flags& has, AttentionCall* call) {
    const Shape scores = {problem.batch, problem.heads, problem.queries, problem.keys};
    if (has.bias) {
      Read("bias", ffi::DataType::F32, "float32",
           [&](const NamedBuffer& named) { return ReadSide(named, scores, &call->bias); });
    }
    if (has.mask) {
      Read("mask", ffi::DataType::PRED, "bool",
           [&](const NamedBuffer& named) { return ReadSide(named, scores, &call->mask); });
    }
    if (has.q_lengths) ReadLengths("q_lengths", problem.batch, &call->q_lengths);
    if (has.k_lengths) ReadLengths("k_lengths", problem.batch, &call->k_lengths);
  }

  ffi::Error Finish() {
    if (error.success() && next != rest.size()) return Explain("more operands than flags");
    return error;
  }
};

ffi::Error ReadProblem(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k, const ffi::AnyBuffer& v,
                       AttentionProblem* problem, AttentionCall* call) {
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
  call->q = static_cast<const float*>(q.untyped_data());
  call->k = static_cast<const float*>(k.untyped_data());
  call->v = static_cast<const float*>(v.untyped_data());
  return CheckShape({"v", v}, {of_k[0], of_k[1], of_k[2], of_v[3]});
}

ffi::Error ReadOptions(float scale, int64_t left, int64_t right, AttentionCall* call) {
  const auto bound = [](int64_t side) {
    return static_cast<int>(std::clamp<int64_t>(side, -kOpenBand, kOpenBand));
  };
  call->scale = scale;
  call->band = {.left = bound(left), .right = bound(right)};
  if (!(scale > 0.0f)) return Explain("the scale must be positive");
  return ffi::Error::Success();
}

ffi::Error CheckResult(const char* name, const ffi::AnyBuffer& result, const Shape& shape) {
  const NamedBuffer named = {name, result};
  ffi::Error error = CheckType(named, ffi::DataType::F32, "float32");
  return error.failure() ? error : CheckShape(named, shape);
}

// Plan makes the plan for a device, and checks that the scratch suffices.
ffi::Error Plan(const AttentionProblem& problem, int32_t ordinal, bool backward,
                const ffi::AnyBuffer& scratch, AttentionPlan* plan) {
  const DeviceLimitsResult found = LimitsOfDevice(ordinal);
  if (found.limits == nullptr) {
    return ffi::Error(ffi::ErrorCode::kUnavailable, std::string(kName) + ": " + found.error);
  }
  const AttentionPlanResult planned = PlanAttention(problem, *found.limits, backward);
  if (!planned.error.empty()) return Explain(planned.error);
  *plan = planned.plan;
  const auto address = reinterpret_cast<std::uintptr_t>(scratch.untyped_data());
  if (static_cast<int64_t>(scratch.size_bytes()) >= plan->scratch_bytes && address % 16 == 0) {
    return ffi::Error::Success();
  }
  return Explain("the scratch needs " + std::to_string(plan->scratch_bytes) +
                 " bytes from a multiple of 16 on, and has " +
                 std::to_string(scratch.size_bytes()));
}

ffi::Error ErrorOfLaunch(cudaError_t status, const AttentionPlan& plan) {
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal("attention: the launch of " + TextOf(plan) +
                              " failed: " + cudaGetErrorString(status));
}

Shape ShapeOfResult(const AttentionProblem& p) {
  return {p.batch, p.queries, p.heads, p.value_depth};
}
Shape ShapeOfSums(const AttentionProblem& p) { return {p.batch, p.heads, p.queries, 2}; }

ffi::Error Attend(cudaStream_t stream, int32_t ordinal, const ffi::AnyBuffer& q,
                  const ffi::AnyBuffer& k, const ffi::AnyBuffer& v, const ffi::RemainingArgs& rest,
                  ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> row_sums,
                  ffi::Result<ffi::AnyBuffer> scratch, float scale, int64_t left, int64_t right,
                  bool has_bias, bool has_mask, bool has_q_lengths, bool has_k_lengths) {
  AttentionProblem problem;
  AttentionCall call = {};
  AttentionPlan plan;
  ffi::Error error = ReadProblem(q, k, v, &problem, &call);
  if (error.success()) error = ReadOptions(scale, left, right, &call);
  if (error.failure()) return error;
  OperandReader reader{rest};
  reader.ReadSides(problem, {has_bias, has_mask, has_q_lengths, has_k_lengths}, &call);
  error = reader.Finish();
  if (error.success()) error = CheckResult("the result", *out, ShapeOfResult(problem));
  if (error.success()) error = CheckResult("the row sums", *row_sums, ShapeOfSums(problem));
  if (error.success()) error = Plan(problem, ordinal, /*backward=*/false, *scratch, &plan);
  if (error.failure()) return error;
  call.out = static_cast<float*>(out->untyped_data());
  call.row_sums = static_cast<float*>(row_sums->untyped_data());
  call.scratch = static_cast<char*>(scratch->untyped_data());
  return ErrorOfLaunch(LaunchAttention(problem, plan, call, stream), plan);
}

// ReadBiasGradient reads the partial sums of the bias's gradient: (groups, *shape of the bias), or
// (0,) for none. The kernel needs a bias of all queries and keys.
ffi::Error ReadBiasGradient(const ffi::AnyBuffer& dbias, const AttentionProblem& problem,
                            const AttentionCall& call, AttentionGradients* gradients) {
  Shape got = ShapeOf(dbias);
  if (got == Shape{0}) return ffi::Error::Success();
  const int64_t* const bias = call.bias.shape;
  if (call.bias.data == nullptr || bias[2] != problem.queries || bias[3] != problem.keys) {
    return Explain("there is no gradient of a bias that queries or keys share");
  }
  const int64_t groups = got.empty() ? 0 : got[0];
  if (groups < 1 || groups > kMaxBiasGroups) return Explain("the groups of the bias's gradient");
  gradients->dbias = static_cast<float*>(dbias.untyped_data());
  gradients->bias_groups = static_cast<int>(groups);
  return CheckResult("dbias", dbias, {groups, bias[0], bias[1], bias[2], bias[3]});
}

// The operands after those of the forward pass are its results, and the cotangent of the first.
ffi::Error Differentiate(cudaStream_t stream, int32_t ordinal, const ffi::AnyBuffer& q,
                         const ffi::AnyBuffer& k, const ffi::AnyBuffer& v,
                         const ffi::RemainingArgs& rest, ffi::Result<ffi::AnyBuffer> dq,
                         ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                         ffi::Result<ffi::AnyBuffer> dbias, ffi::Result<ffi::AnyBuffer> scratch,
                         float scale, int64_t left, int64_t right, bool has_bias, bool has_mask,
                         bool has_q_lengths, bool has_k_lengths) {
  AttentionProblem problem;
  AttentionCall call = {};
  AttentionPlan plan;
  ffi::Error error = ReadProblem(q, k, v, &problem, &call);
  if (error.success()) error = ReadOptions(scale, left, right, &call);
  if (error.failure()) return error;
  const float* out = nullptr;
  const float* row_sums = nullptr;
  AttentionGradients gradients = {};
  OperandReader reader{rest};
  reader.ReadSides(problem, {has_bias, has_mask, has_q_lengths, has_k_lengths}, &call);
  reader.ReadArray("the result", ShapeOfResult(problem), &out);
  reader.ReadArray("the row sums", ShapeOfSums(problem), &row_sums);
  reader.ReadArray("its cotangent", ShapeOfResult(problem), &gradients.dy);
  error = reader.Finish();
  if (error.success()) error = CheckResult("dq", *dq, ShapeOf(q));
  if (error.success()) error = CheckResult("dk", *dk, ShapeOf(k));
  if (error.success()) error = CheckResult("dv", *dv, ShapeOf(v));
  if (error.success()) error = ReadBiasGradient(*dbias, problem, call, &gradients);
  if (error.success()) error = Plan(problem, ordinal, /*backward=*/true, *scratch, &plan);
  if (error.failure()) return error;
  call.out = const_cast<float*>(out);
  call.row_sums = const_cast<float*>(row_sums);
  call.scratch = static_cast<char*>(scratch->untyped_data());
  gradients.dq = static_cast<float*>(dq->untyped_data());
  gradients.dk = static_cast<float*>(dk->untyped_data());
  gradients.dv = static_cast<float*>(dv->untyped_data());
  return ErrorOfLaunch(LaunchAttentionBackward(problem, plan, call, gradients, stream), plan);
}

auto BindOperands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>();
}

template <typename Binding>
auto BindAttributes(Binding binding) {
  return std::move(binding)
      .template Attr<float>("scale")
      .template Attr<int64_t>("left")
      .template Attr<int64_t>("right")
      .template Attr<bool>("has_bias")
      .template Attr<bool>("has_mask")
      .template Attr<bool>("has_q_lengths")
      .template Attr<bool>("has_k_lengths");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsAttentionCuda, Attend, BindAttributes(BindOperands()),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JaxkernelsAttentionBackwardCuda, Differentiate,
    BindAttributes(BindOperands().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()),
    {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxkernels
