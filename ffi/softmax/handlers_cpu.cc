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
#include "softmax/bindings.h"
#include "softmax/kernels_cpu.h"
#include "softmax/operations.h"
#include "softmax/part_call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

// Splits the rows of a call over the threads of the pool.
ffi::Future Run(ffi::ThreadPool& pool, const CpuCall& call) {
  const int64_t width = ByteWidth(call.dtype);
  if (call.rows.out != nullptr) {
    AdviseHugePages(call.rows.out, call.rows.rows * call.rows.cols * width);
  }
  const int64_t row_bytes = call.rows.cols * width * (InputsOf(call.operation) + 1);
  return ParallelFor(pool, call.rows.rows, row_bytes,
                     [=](int64_t begin, int64_t end) { RunRows(call, begin, end); });
}

// `out` is null where a part has none.
CpuCall CallOf(Operation operation, const ffi::AnyBuffer& x, const void* second, void* out) {
  const RowShape shape = RowShapeOf(x);
  return {operation,
          *ToDType(x.element_type()),
          {{x.untyped_data(), second}, out, shape.rows, shape.cols}};
}

// x -> y. `tier` names a GPU kernel; the CPU has one way only.
template <Operation operation>
ffi::Future Forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                    std::string_view /*tier*/) {
  ffi::Error error = CheckRowOperation(NameOf(operation), {{"x", x}}, *y);
  if (error.failure()) return ReadyFuture(std::move(error));
  return Run(pool, CallOf(operation, x, nullptr, y->untyped_data()));
}

// y and a cotangent (or tangent) -> a cotangent (or tangent).
template <Operation operation>
ffi::Future Linear(ffi::ThreadPool pool, ffi::AnyBuffer y, ffi::AnyBuffer t,
                   ffi::Result<ffi::AnyBuffer> out, std::string_view /*tier*/) {
  const char* second = operation == Operation::kLogSoftmaxJvp ? "dx" : "dy";
  ffi::Error error = CheckRowOperation(NameOf(operation), {{"y", y}, {second, t}}, *out);
  if (error.failure()) return ReadyFuture(std::move(error));
  return Run(pool, CallOf(operation, y, t.untyped_data(), out->untyped_data()));
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
  CpuCall call = CallOf(operation, scores, bias, y->untyped_data());
  call.attention = attention;
  return Run(pool, call);
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
  CpuCall call = CallOf(kOperation, y, dy.untyped_data(), out->untyped_data());
  call.attention = attention;
  return Run(pool, call);
}

// The operands of an operation -> the statistics of its rows
ffi::Future Statistics(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs rest,
                       ffi::Result<ffi::AnyBuffer> statistics, std::string_view operation,
                       double scale, bool has_mask) {
  PartCall part;
  ffi::Error error = ReadPart({operation, scale, has_mask}, x, rest, *statistics, &part);
  if (error.failure()) return ReadyFuture(std::move(error));
  CpuCall call = CallOf(part.operation, x, part.second, nullptr);
  call.attention = part.attention;
  call.part = Part::kStatistics;
  call.statistics = statistics->untyped_data();
  return Run(pool, call);
}

// The statistics of the rows and the operands of an operation -> its result
ffi::Future Finish(ffi::ThreadPool pool, ffi::AnyBuffer statistics, ffi::AnyBuffer x,
                   ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> out,
                   std::string_view operation, double scale, bool has_mask) {
  PartCall part;
  ffi::Error error = ReadPart({operation, scale, has_mask}, x, rest, statistics, &part);
  if (error.success()) error = CheckSameAs(operation, {"the result", *out}, {"x", x});
  if (error.failure()) return ReadyFuture(std::move(error));
  CpuCall call = CallOf(part.operation, x, part.second, out->untyped_data());
  call.attention = part.attention;
  call.part = Part::kFinish;
  call.statistics = statistics.untyped_data();
  return Run(pool, call);
}

auto OnPool() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>(); }

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsSoftmaxFwdCpu, Forward<Operation::kSoftmaxForward>,
                              BindForward(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsLogSoftmaxFwdCpu, Forward<Operation::kLogSoftmaxForward>,
                              BindForward(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsSoftmaxGradCpu, Linear<Operation::kSoftmaxGrad>,
                              BindLinear(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsLogSoftmaxGradCpu, Linear<Operation::kLogSoftmaxGrad>,
                              BindLinear(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsLogSoftmaxJvpCpu, Linear<Operation::kLogSoftmaxJvp>,
                              BindLinear(OnPool()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsMaskedSoftmaxFwdCpu, AttentionForward,
                              BindAttentionForward(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsMaskedSoftmaxGradCpu, AttentionGrad,
                              BindAttentionGrad(OnPool()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsRowStatisticsCpu, Statistics, BindStatistics(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsRowFinishCpu, Finish, BindFinish(OnPool()));

}  // namespace jaxkernels
