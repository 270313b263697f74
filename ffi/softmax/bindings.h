// The signatures of the row operations' FFI targets: operands, results, attributes. The CPU and
// CUDA differ only in what they ask of XLA besides, which `binding` brings along.
#ifndef JAXKERNELS_SOFTMAX_BINDINGS_H_
#define JAXKERNELS_SOFTMAX_BINDINGS_H_

#include <cstdint>
#include <string_view>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// x -> y
template <typename Binding>
auto BindForward(Binding&& binding) {
  using xla::ffi::AnyBuffer;
  return std::forward<Binding>(binding)
      .template Arg<AnyBuffer>()
      .template Ret<AnyBuffer>()
      .template Attr<std::string_view>("tier");
}

// y and a cotangent (or tangent) -> a cotangent (or tangent)
template <typename Binding>
auto BindLinear(Binding&& binding) {
  return BindForward(std::forward<Binding>(binding).template Arg<xla::ffi::AnyBuffer>());
}

// scores, and perhaps a mask and a bias -> y
template <typename Binding>
auto BindAttentionForward(Binding&& binding) {
  using xla::ffi::AnyBuffer;
  return std::forward<Binding>(binding)
      .template Arg<AnyBuffer>()
      .RemainingArgs()
      .template Ret<AnyBuffer>()
      .template Attr<std::string_view>("tier")
      .template Attr<double>("scale")
      .template Attr<int64_t>("left")
      .template Attr<int64_t>("right")
      .template Attr<bool>("from_end")
      .template Attr<bool>("has_mask")
      .template Attr<bool>("has_bias");
}

// y and a cotangent (or tangent) of it -> a cotangent (or tangent) of the scores
template <typename Binding>
auto BindAttentionGrad(Binding&& binding) {
  return BindLinear(std::forward<Binding>(binding))
      .template Attr<double>("scale")
      .template Attr<int64_t>("left")
      .template Attr<int64_t>("right")
      .template Attr<bool>("from_end");
}

// The operands of an operation -> the statistics of its rows
template <typename Binding>
auto BindStatistics(Binding&& binding) {
  using xla::ffi::AnyBuffer;
  return std::forward<Binding>(binding)
      .template Arg<AnyBuffer>()
      .RemainingArgs()
      .template Ret<AnyBuffer>()
      .template Attr<std::string_view>("operation")
      .template Attr<double>("scale")
      .template Attr<bool>("has_mask");
}

// The statistics of the rows and the operands of an operation -> its result
template <typename Binding>
auto BindFinish(Binding&& binding) {
  return BindStatistics(std::forward<Binding>(binding).template Arg<xla::ffi::AnyBuffer>());
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_BINDINGS_H_
