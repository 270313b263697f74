// The FFI handlers of float32 flash attention.
//
// Owns: the parser of a call with its checks, and the path to a plan and a launch. Must not know:
// how a kernel works. Handlers never allocate or synchronise, so that CUDA graphs can capture them.
// The scratch is the last result, which XLA allocates.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
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

struct ElementType {
  ffi::DataType type;
  const char* name;
};
ElementType TypeOf(float) { return {ffi::DataType::F32, "float32"}; }
ElementType TypeOf(int32_t) { return {ffi::DataType::S32, "int32"}; }
ElementType TypeOf(uint8_t) { return {ffi::DataType::PRED, "bool"}; }

// Reader checks buffers one after the other, and keeps the first error.
struct Reader {
  const ffi::RemainingArgs& rest;  // the operands after q, k and v
  std::size_t next = 0;
  ffi::Error error = ffi::Error::Success();

  void Fail(ffi::Error found) {
    if (error.success()) error = std::move(found);
  }

  template <typename T>
  T* Take(const char* name, const ffi::AnyBuffer& buffer, const Shape& shape) {
    const ElementType wanted = TypeOf(T());
    const ffi::DataType type = buffer.element_type();
    const Shape got = ShapeOf(buffer);
    if (type != wanted.type) {
      Fail(MismatchError(kName, name, "dtype", wanted.name, DTypeName(type)));
    } else if (got != shape) {
      Fail(MismatchError(kName, name, "shape", ShapeText(shape), ShapeText(got)));
    }
    return static_cast<T*>(buffer.untyped_data());
  }

  // TakeNext takes an operand of `rest`. If `broadcasts`, its dimensions may be 1, as `shape` then
  // tells.
  template <typename T>
  T* TakeNext(const char* name, Shape* shape, bool broadcasts = false) {
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = rest.get<ffi::AnyBuffer>(next++);
    if (!buffer) {
      Fail(buffer.error());
      return nullptr;
    }
    const Shape got = ShapeOf(*buffer);
    for (std::size_t i = 0; broadcasts && i < std::min(got.size(), shape->size()); ++i) {
      if (got[i] == 1) (*shape)[i] = 1;
    }
    return Take<T>(name, *buffer, *shape);
  }

  template <typename T>
  void TakeScores(const char* name, Shape scores, ScoreOperand<T>* operand) {
    operand->data = TakeNext<T>(name, &scores, /*broadcasts=*/true);
    std::copy(scores.begin(), scores.end(), operand->shape);
  }
};

struct ParsedCall {
  AttentionProblem problem;
  AttentionCall call = {};
  AttentionPlan plan;
  Shape of_result, of_sums;

  void Read(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k, const ffi::AnyBuffer& v, float scale,
            int64_t left, int64_t right, bool has_bias, bool has_mask, bool has_q_lengths,
            bool has_k_lengths, Reader* reader) {
    const Shape of_q = ShapeOf(q), of_v = ShapeOf(v);
    if (of_q.size() != 4 || of_v.size() != 4) return reader->Fail(Explain("q and v need rank 4"));
    if (!(scale > 0.0f) || std::isinf(scale)) {
      reader->Fail(Explain("the scale must be positive and finite"));
    }
    const int64_t batch = of_q[0], queries = of_q[1], keys = of_v[1], heads = of_q[2];
    problem = {batch, queries, keys, heads, of_v[2], of_q[3], of_v[3]};
    call.q = reader->Take<float>("q", q, of_q);
    call.k = reader->Take<float>("k", k, {batch, keys, of_v[2], of_q[3]});
    call.v = reader->Take<float>("v", v, {batch, keys, of_v[2], of_v[3]});
    const Shape scores = {batch, heads, queries, keys};
    Shape lengths = {batch};
    if (has_bias) reader->TakeScores("bias", scores, &call.bias);
    if (has_mask) reader->TakeScores("mask", scores, &call.mask);
    if (has_q_lengths) call.q_lengths = reader->TakeNext<int32_t>("q_lengths", &lengths);
    if (has_k_lengths) call.k_lengths = reader->TakeNext<int32_t>("k_lengths", &lengths);
    const auto bound = [](int64_t side) {
      return static_cast<int>(std::clamp<int64_t>(side, -kOpenBand, kOpenBand));
    };
    call.scale = scale;
    call.band = {.left = bound(left), .right = bound(right)};
    of_result = {batch, queries, heads, of_v[3]};
    of_sums = {batch, heads, queries, 2};
  }

  ffi::Error Plan(int32_t ordinal, bool backward, const ffi::AnyBuffer& scratch,
                  const Reader& reader) {
    if (reader.error.failure()) return reader.error;
    if (reader.next != reader.rest.size()) return Explain("more operands than flags");
    const DeviceLimitsResult found = LimitsOfDevice(ordinal);
    if (found.limits == nullptr) {
      return ffi::Error(ffi::ErrorCode::kUnavailable, std::string(kName) + ": " + found.error);
    }
    const AttentionPlanResult planned = PlanAttention(problem, *found.limits, backward);
    if (!planned.error.empty()) return Explain(planned.error);
    plan = planned.plan;
    if (reinterpret_cast<std::uintptr_t>(call.row_sums) % 8 != 0) {
      return Explain("the row sums must begin at a multiple of 8 bytes");
    }
    call.scratch = static_cast<char*>(scratch.untyped_data());
    if (static_cast<int64_t>(scratch.size_bytes()) >= plan.scratch_bytes &&
        reinterpret_cast<std::uintptr_t>(call.scratch) % 16 == 0) {
      return ffi::Error::Success();
    }
    return Explain("the scratch needs " + std::to_string(plan.scratch_bytes) +
                   " bytes from a multiple of 16 on, and has " +
                   std::to_string(scratch.size_bytes()));
  }

  ffi::Error ErrorOf(cudaError_t status) const {
    if (status == cudaSuccess) return ffi::Error::Success();
    return ffi::Error::Internal("attention: the launch of " + TextOf(plan) +
                                " failed: " + cudaGetErrorString(status));
  }
};

ffi::Error Attend(cudaStream_t stream, int32_t ordinal, const ffi::AnyBuffer& q,
                  const ffi::AnyBuffer& k, const ffi::AnyBuffer& v, const ffi::RemainingArgs& rest,
                  ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> row_sums,
                  ffi::Result<ffi::AnyBuffer> scratch, float scale, int64_t left, int64_t right,
                  bool has_bias, bool has_mask, bool has_q_lengths, bool has_k_lengths) {
  Reader reader{rest};
  ParsedCall parsed;
  parsed.Read(q, k, v, scale, left, right, has_bias, has_mask, has_q_lengths, has_k_lengths,
              &reader);
  parsed.call.out = reader.Take<float>("the result", *out, parsed.of_result);
  parsed.call.row_sums = reader.Take<float>("the row sums", *row_sums, parsed.of_sums);
  ffi::Error error = parsed.Plan(ordinal, /*backward=*/false, *scratch, reader);
  if (error.failure()) return error;
  return parsed.ErrorOf(LaunchAttention(parsed.problem, parsed.plan, parsed.call, stream));
}

// TakeBiasGradient takes the partial sums of the bias's gradient: (groups, *shape of the bias), or
// (0,) for none. The kernel needs a bias of all queries and keys.
void TakeBiasGradient(const ffi::AnyBuffer& dbias, const ParsedCall& parsed, Reader* reader,
                      AttentionGradients* gradients) {
  const Shape got = ShapeOf(dbias);
  if (got == Shape{0}) return;
  const int64_t* const bias = parsed.call.bias.shape;
  const AttentionProblem& problem = parsed.problem;
  if (!parsed.call.bias.data || bias[2] != problem.queries || bias[3] != problem.keys) {
    return reader->Fail(Explain("there is no gradient of a bias that queries or keys share"));
  }
  const int64_t groups = got.empty() ? 0 : got[0];
  if (groups < 1 || groups > kMaxBiasGroups) {
    reader->Fail(Explain("dbias must have 1 to " + std::to_string(kMaxBiasGroups) + " groups"));
  }
  const Shape shape = {groups, bias[0], bias[1], bias[2], bias[3]};
  gradients->dbias = reader->Take<float>("dbias", dbias, shape);
  gradients->bias_groups = static_cast<int>(groups);
}

// The operands after those of the forward pass are its results, and the cotangent of the first.
ffi::Error Differentiate(cudaStream_t stream, int32_t ordinal, const ffi::AnyBuffer& q,
                         const ffi::AnyBuffer& k, const ffi::AnyBuffer& v,
                         const ffi::RemainingArgs& rest, ffi::Result<ffi::AnyBuffer> dq,
                         ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                         ffi::Result<ffi::AnyBuffer> dbias, ffi::Result<ffi::AnyBuffer> scratch,
                         float scale, int64_t left, int64_t right, bool has_bias, bool has_mask,
                         bool has_q_lengths, bool has_k_lengths) {
  Reader reader{rest};
  ParsedCall parsed;
  AttentionGradients gradients = {};
  parsed.Read(q, k, v, scale, left, right, has_bias, has_mask, has_q_lengths, has_k_lengths,
              &reader);
  parsed.call.out = reader.TakeNext<float>("the result", &parsed.of_result);
  parsed.call.row_sums = reader.TakeNext<float>("the row sums", &parsed.of_sums);
  gradients.dy = reader.TakeNext<float>("its cotangent", &parsed.of_result);
  gradients.dq = reader.Take<float>("dq", *dq, ShapeOf(q));
  gradients.dk = reader.Take<float>("dk", *dk, ShapeOf(k));
  gradients.dv = reader.Take<float>("dv", *dv, ShapeOf(v));
  TakeBiasGradient(*dbias, parsed, &reader, &gradients);
  ffi::Error error = parsed.Plan(ordinal, /*backward=*/true, *scratch, reader);
  if (error.failure()) return error;
  return parsed.ErrorOf(
      LaunchAttentionBackward(parsed.problem, parsed.plan, parsed.call, gradients, stream));
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
