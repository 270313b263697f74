// The FFI handlers of the row operations on the CPU.
//
// Owns: what a call must look like. Must not know: how a row is computed, how threads share rows.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "common/checks.h"
#include "common/huge_pages.h"
#include "common/parallel_for.h"
#include "softmax/attention_call.h"
#include "softmax/kernels_cpu.h"
#include "softmax/operations.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

ffi::Future Run(Operation operation, ffi::ThreadPool& pool, const ffi::AnyBuffer& x,
                const void* second, const ffi::AnyBuffer& out) {
  const DType dtype = *ToDType(x.element_type());
  const RowShape shape = RowShapeOf(x);
  const CpuRows all = {{x.untyped_data(), second}, out.untyped_data(), shape.rows, shape.cols};
  AdviseHugePages(all.out, shape.rows * shape.cols * ByteWidth(dtype));
  const int64_t row_bytes = shape.cols * ByteWidth(dtype) * (second == nullptr ? 2 : 3);
  return ParallelFor(pool, shape.rows, row_bytes, [=](int64_t begin, int64_t end) {
    RunRows(dtype, operation, SliceRows(all, dtype, begin, end));
  });
}

// x -> y. `tier` names a GPU kernel; the CPU has one way only.
template <Operation operation>
ffi::Future Forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                    std::string_view /*tier*/) {
  ffi::Error error = CheckRowOperation(NameOf(operation), {{"x", x}}, *y);
  if (error.failure()) return ReadyFuture(std::move(error));
  return Run(operation, pool, x, nullptr, *y);
}

// y and a cotangent (or tangent) -> a cotangent (or tangent).
template <Operation operation>
ffi::Future Linear(ffi::ThreadPool pool, ffi::AnyBuffer y, ffi::AnyBuffer t,
                   ffi::Result<ffi::AnyBuffer> out, std::string_view /*tier*/) {
  const char* second = operation == Operation::kLogSoftmaxJvp ? "dx" : "dy";
  ffi::Error error = CheckRowOperation(NameOf(operation), {{"y", y}, {second, t}}, *out);
  if (error.failure()) return ReadyFuture(std::move(error));
  return Run(operation, pool, y, t.untyped_data(), *out);
}

ffi::Future RunAttention(Operation operation, ffi::ThreadPool& pool, const ffi::AnyBuffer& x,
                         const void* second, const ffi::AnyBuffer& out,
                         const MaskedRows& attention) {
  const DType dtype = *ToDType(x.element_type());
  const RowShape shape = RowShapeOf(x);
  const CpuRows all = {{x.untyped_data(), second}, out.untyped_data(), shape.rows, shape.cols};
  AdviseHugePages(all.out, shape.rows * shape.cols * ByteWidth(dtype));
  const int64_t row_bytes = shape.cols * ByteWidth(dtype) * (InputsOf(operation) + 1);
  return ParallelFor(pool, shape.rows, row_bytes, [=](int64_t begin, int64_t end) {
    RunAttentionRows(dtype, operation, all, attention, begin, end);
  });
}

// scores, and perhaps a mask and a bias -> y
ffi::Future AttentionForward(ffi::ThreadPool pool, ffi::AnyBuffer scores, ffi::RemainingArgs rest,
                             ffi::Result<ffi::AnyBuffer> y, std::string_view /*tier*/, double scale,
                             int64_t left, int64_t right, bool from_end, bool has_mask,
                             bool has_bias) {
  const Operation operation =
      has_bias ? Operation::kBiasedSoftmaxForward : Operation::kMaskedSoftmaxForward;
  const NamedBuffer named = {"scores", scores};
  MaskedRows attention;
  const void* bias = nullptr;
  ffi::Error error = CheckRowOperation(NameOf(operation), {named}, *y);
  if (error.success()) {
    error = ReadAttentionRows(operation, named, {scale, left, right, from_end}, &attention);
  }
  if (error.success()) {
    error = ReadMaskAndBias(operation, scores, rest, has_mask, has_bias, &attention, &bias);
  }
  if (error.failure()) return ReadyFuture(std::move(error));
  return RunAttention(operation, pool, scores, bias, *y, attention);
}

// y and a cotangent (or tangent) -> a cotangent (or tangent) of the scores
ffi::Future AttentionGrad(ffi::ThreadPool pool, ffi::AnyBuffer y, ffi::AnyBuffer dy,
                          ffi::Result<ffi::AnyBuffer> out, std::string_view /*tier*/, double scale,
                          int64_t left, int64_t right, bool from_end) {
  constexpr Operation kOperation = Operation::kMaskedSoftmaxGrad;
  const NamedBuffer named = {"y", y};
  MaskedRows attention;
  ffi::Error error = CheckRowOperation(NameOf(kOperation), {named, {"dy", dy}}, *out);
  if (error.success()) {
    error = ReadAttentionRows(kOperation, named, {scale, left, right, from_end}, &attention);
  }
  if (error.failure()) return ReadyFuture(std::move(error));
  return RunAttention(kOperation, pool, y, dy.untyped_data(), *out, attention);
}

auto BindForward() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<std::string_view>("tier");
}

auto BindLinear() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<std::string_view>("tier");
}

auto BindAttentionForward() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .Attr<std::string_view>("tier")
      .Attr<double>("scale")
      .Attr<int64_t>("left")
      .Attr<int64_t>("right")
      .Attr<bool>("from_end")
      .Attr<bool>("has_mask")
      .Attr<bool>("has_bias");
}

auto BindAttentionGrad() {
  return BindLinear().Attr<double>("scale").Attr<int64_t>("left").Attr<int64_t>("right").Attr<bool>(
      "from_end");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsSoftmaxFwdCpu, Forward<Operation::kSoftmaxForward>,
                              BindForward());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsLogSoftmaxFwdCpu, Forward<Operation::kLogSoftmaxForward>,
                              BindForward());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsSoftmaxGradCpu, Linear<Operation::kSoftmaxGrad>,
                              BindLinear());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsLogSoftmaxGradCpu, Linear<Operation::kLogSoftmaxGrad>,
                              BindLinear());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsLogSoftmaxJvpCpu, Linear<Operation::kLogSoftmaxJvp>,
                              BindLinear());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsMaskedSoftmaxFwdCpu, AttentionForward,
                              BindAttentionForward());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsMaskedSoftmaxGradCpu, AttentionGrad, BindAttentionGrad());

}  // namespace jaxkernels
