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
#include "softmax/launch.h"
#include "softmax/operations.h"
#include "softmax/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

ffi::Error Explain(Operation operation, const std::string& problem) {
  return ffi::Error::InvalidArgument(std::string(NameOf(operation)) + ": " + problem);
}

bool IsPackAligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kPlanPackBytes == 0;
}

ffi::Error Run(Operation operation, cudaStream_t stream, int32_t ordinal,
               std::string_view tier_name, const ffi::AnyBuffer& x, const SoftmaxArrays& arrays) {
  if (arrays.rows == 0 || arrays.cols == 0) return ffi::Error::Success();
  SoftmaxProblem problem{arrays.rows, arrays.cols, *ToDType(x.element_type()), operation,
                         Tier::kAuto};
  if (!ParseTier(tier_name, &problem.tier))
    return Explain(operation, "unknown tier '" + std::string(tier_name) + "'");
  if (!IsPackAligned(arrays.in[0]) || !IsPackAligned(arrays.in[1]) || !IsPackAligned(arrays.out)) {
    return Explain(operation, "buffers must be aligned to 16 bytes");
  }
  const DeviceLimits* limits = LimitsOfDevice(ordinal);
  if (limits == nullptr)
    return Explain(operation, "there is no CUDA device " + std::to_string(ordinal));
  const SoftmaxPlanResult planned = PlanSoftmax(problem, *limits);
  if (!planned.error.empty()) return Explain(operation, planned.error);

  const cudaError_t status = LaunchSoftmax(problem.dtype, operation, planned.plan, arrays, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(NameOf(operation)) + ": the launch of " +
                              ToString(planned.plan) + " failed: " + cudaGetErrorString(status));
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

auto BindForward() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<std::string_view>("tier");
}

auto BindLinear() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<std::string_view>("tier");
}

}  // namespace

#define JK_CUDA_HANDLER(symbol, function, binding) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding, {ffi::Traits::kCmdBufferCompatible})

JK_CUDA_HANDLER(JaxkernelsSoftmaxFwdCuda, Forward<Operation::kSoftmaxForward>, BindForward());
JK_CUDA_HANDLER(JaxkernelsLogSoftmaxFwdCuda, Forward<Operation::kLogSoftmaxForward>, BindForward());
JK_CUDA_HANDLER(JaxkernelsSoftmaxGradCuda, Linear<Operation::kSoftmaxGrad>, BindLinear());
JK_CUDA_HANDLER(JaxkernelsLogSoftmaxGradCuda, Linear<Operation::kLogSoftmaxGrad>, BindLinear());
JK_CUDA_HANDLER(JaxkernelsLogSoftmaxJvpCuda, Linear<Operation::kLogSoftmaxJvp>, BindLinear());

#undef JK_CUDA_HANDLER

}  // namespace jaxkernels
