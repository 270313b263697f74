// The FFI handlers of the row operations on CUDA.
//
// Owns: what a call must look like, and the way from an XLA call to a launch. Must not know: how a
// plan is chosen, how a kernel works. Handlers neither allocate nor synchronise, so that they can
// be captured into CUDA graphs.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "common/checks.h"
#include "common/device_query.h"
#include "softmax/attention_call.h"
#include "softmax/bindings.h"
#include "softmax/launch.h"
#include "softmax/operations.h"
#include "softmax/part_call.h"
#include "softmax/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

ffi::Error Explain(Operation operation, const std::string& problem) {
  return ffi::Error::InvalidArgument(std::string(NameOf(operation)) + ": " + problem);
}

ffi::Error Unavailable(Operation operation, const std::string& problem) {
  return ffi::Error(ffi::ErrorCode::kUnavailable, std::string(NameOf(operation)) + ": " + problem);
}

// Where the arrays of a call begin within a pack: XLA hands a call the slice of a buffer in place.
// False where one of them does not even begin at an element.
bool FindAlignment(const SoftmaxArrays& arrays, SoftmaxProblem* problem) {
  const auto place = [](const void* array, int bytes) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(array) % bytes);
  };
  const int width = ByteWidth(problem->dtype);
  const void* const leading = arrays.out != nullptr ? arrays.out : arrays.in[0];
  const int begin = place(leading, kPackBytes);
  problem->offset = begin / width;
  bool at_elements = begin % width == 0;
  problem->broadcast_aligned = place(arrays.attention.mask, kMostMaskBytes) == 0;
  for (int i = 0; i < InputsOf(problem->operation); ++i) {
    const int at = place(arrays.in[i], kPackBytes);
    at_elements &= at % width == 0;
    if (i == 0 || SharesRows(problem->operation)) {
      problem->shifted |= at != begin;
    } else {
      problem->broadcast_aligned &= at == 0;
    }
  }
  return at_elements;
}

ffi::Error Run(Operation operation, cudaStream_t stream, int32_t ordinal,
               std::string_view tier_name, const ffi::AnyBuffer& x, const SoftmaxArrays& arrays,
               Part part = Part::kWhole) {
  if (arrays.rows == 0 || arrays.cols == 0) return ffi::Error::Success();
  SoftmaxProblem problem;
  problem.rows = arrays.rows;
  problem.cols = arrays.cols;
  problem.dtype = *ToDType(x.element_type());
  problem.operation = operation;
  problem.part = part;
  if (!ParseName(tier_name, &problem.tier))
    return Explain(operation, "unknown tier '" + std::string(tier_name) + "'");
  if (!FindAlignment(arrays, &problem))
    return Explain(operation, "buffers must be aligned to their elements");
  const DeviceLimitsResult found = LimitsOfDevice(ordinal);
  if (found.limits == nullptr) return Unavailable(operation, found.error);
  const SoftmaxPlanResult planned = PlanSoftmax(problem, *found.limits);
  if (!planned.error.empty()) return Explain(operation, planned.error);

  const cudaError_t status = LaunchSoftmax(problem.dtype, operation, planned.plan, arrays, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(NameOf(operation)) + ": the launch of " +
                              TextOf(planned.plan) + " failed: " + cudaGetErrorString(status));
}

// x -> y
template <Operation operation>
ffi::Error Forward(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer x,
                   ffi::Result<ffi::AnyBuffer> y, std::string_view tier) {
  if (ffi::Error error = CheckRowOperation(NameOf(operation), {{"x", x}}, *y); error.failure())
    return error;
  const RowShape shape = RowShapeOf(x);
  return Run(operation, stream, ordinal, tier, x,
             {{x.untyped_data(), nullptr}, y->untyped_data(), shape.rows, shape.cols});
}

// y and a cotangent (or tangent) -> a cotangent (or tangent)
template <Operation operation>
ffi::Error Linear(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer y, ffi::AnyBuffer t,
                  ffi::Result<ffi::AnyBuffer> out, std::string_view tier) {
  const char* second = operation == Operation::kLogSoftmaxJvp ? "dx" : "dy";
  if (ffi::Error error = CheckRowOperation(NameOf(operation), {{"y", y}, {second, t}}, *out);
      error.failure()) {
    return error;
  }
  const RowShape shape = RowShapeOf(y);
  return Run(operation, stream, ordinal, tier, y,
             {{y.untyped_data(), t.untyped_data()}, out->untyped_data(), shape.rows, shape.cols});
}

// scores, and perhaps a mask and a bias -> y
ffi::Error AttentionForward(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer scores,
                            ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                            std::string_view tier, double scale, int64_t left, int64_t right,
                            bool from_end, bool has_mask, bool has_bias) {
  const Operation operation =
      has_bias ? Operation::kBiasedSoftmaxForward : Operation::kMaskedSoftmaxForward;
  const NamedBuffer named = {"scores", scores};
  ffi::Error error = CheckRowOperation(NameOf(operation), {named}, *y);
  if (error.failure()) return error;
  const RowShape shape = RowShapeOf(scores);
  SoftmaxArrays arrays = {
      {scores.untyped_data(), nullptr}, y->untyped_data(), shape.rows, shape.cols};
  error = ReadAttentionRows(operation, named, {scale, left, right, from_end}, &arrays.attention);
  if (error.failure()) return error;
  error = ReadMaskAndBias(operation, scores, rest, has_mask, has_bias, &arrays.attention,
                          &arrays.in[1]);
  if (error.failure()) return error;
  if (has_mask) {
    const int64_t row_bytes = 2 * shape.cols * ByteWidth(*ToDType(scores.element_type()));
    arrays.attention.order = OrderOfRows(arrays.attention.mask_rows, shape.rows, row_bytes);
  }
  return Run(operation, stream, ordinal, tier, scores, arrays);
}

// y and a cotangent (or tangent) -> a cotangent (or tangent) of the scores
ffi::Error AttentionGrad(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer y, ffi::AnyBuffer dy,
                         ffi::Result<ffi::AnyBuffer> out, std::string_view tier, double scale,
                         int64_t left, int64_t right, bool from_end) {
  constexpr Operation kOperation = Operation::kMaskedSoftmaxGrad;
  const NamedBuffer named = {"y", y};
  ffi::Error error = CheckRowOperation(NameOf(kOperation), {named, {"dy", dy}}, *out);
  if (error.failure()) return error;
  const RowShape shape = RowShapeOf(y);
  SoftmaxArrays arrays = {
      {y.untyped_data(), dy.untyped_data()}, out->untyped_data(), shape.rows, shape.cols};
  error = ReadAttentionRows(kOperation, named, {scale, left, right, from_end}, &arrays.attention);
  if (error.failure()) return error;
  return Run(kOperation, stream, ordinal, tier, y, arrays);
}

// The operands of an operation -> the statistics of its rows
ffi::Error Statistics(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer x,
                      ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> statistics,
                      std::string_view operation, double scale, bool has_mask) {
  PartCall call;
  ffi::Error error = ReadPart({operation, scale, has_mask}, x, rest, *statistics, &call);
  if (error.failure()) return error;
  const RowShape shape = RowShapeOf(x);
  const SoftmaxArrays arrays = {
      {x.untyped_data(), call.second}, nullptr, shape.rows, shape.cols, call.attention,
      statistics->untyped_data()};
  return Run(call.operation, stream, ordinal, "auto", x, arrays, Part::kStatistics);
}

// The statistics of the rows and the operands of an operation -> its result
ffi::Error Finish(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer statistics, ffi::AnyBuffer x,
                  ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> out,
                  std::string_view operation, double scale, bool has_mask) {
  PartCall call;
  ffi::Error error = ReadPart({operation, scale, has_mask}, x, rest, statistics, &call);
  if (error.success()) error = CheckSameAs(operation, {"the result", *out}, {"x", x});
  if (error.failure()) return error;
  const RowShape shape = RowShapeOf(x);
  const SoftmaxArrays arrays = {
      {x.untyped_data(), call.second}, out->untyped_data(), shape.rows, shape.cols, call.attention,
      statistics.untyped_data()};
  return Run(call.operation, stream, ordinal, "auto", x, arrays, Part::kFinish);
}

auto OnStream() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Ctx<ffi::DeviceOrdinal>();
}

}  // namespace

#define JK_CUDA_HANDLER(symbol, function, binding) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding, {ffi::Traits::kCmdBufferCompatible})

JK_CUDA_HANDLER(JaxkernelsSoftmaxFwdCuda, Forward<Operation::kSoftmaxForward>,
                BindForward(OnStream()));
JK_CUDA_HANDLER(JaxkernelsLogSoftmaxFwdCuda, Forward<Operation::kLogSoftmaxForward>,
                BindForward(OnStream()));
JK_CUDA_HANDLER(JaxkernelsSoftmaxGradCuda, Linear<Operation::kSoftmaxGrad>, BindLinear(OnStream()));
JK_CUDA_HANDLER(JaxkernelsLogSoftmaxGradCuda, Linear<Operation::kLogSoftmaxGrad>,
                BindLinear(OnStream()));
JK_CUDA_HANDLER(JaxkernelsLogSoftmaxJvpCuda, Linear<Operation::kLogSoftmaxJvp>,
                BindLinear(OnStream()));
JK_CUDA_HANDLER(JaxkernelsMaskedSoftmaxFwdCuda, AttentionForward, BindAttentionForward(OnStream()));
JK_CUDA_HANDLER(JaxkernelsMaskedSoftmaxGradCuda, AttentionGrad, BindAttentionGrad(OnStream()));
JK_CUDA_HANDLER(JaxkernelsRowStatisticsCuda, Statistics, BindStatistics(OnStream()));
JK_CUDA_HANDLER(JaxkernelsRowFinishCuda, Finish, BindFinish(OnStream()));

#undef JK_CUDA_HANDLER

}  // namespace jaxkernels
