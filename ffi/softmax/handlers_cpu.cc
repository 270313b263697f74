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

}  // namespace jaxkernels
