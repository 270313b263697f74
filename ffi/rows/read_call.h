// The signatures of the row operations' FFI targets, and the one way from a call of XLA to a
// RowCall, on the CPU and on CUDA alike.
//
// Owns: operands, results and attributes of the targets. Must not know: any device; what XLA is
// asked for besides (a stream, a pool of threads) comes with `binding`.
#ifndef JAXKERNELS_ROWS_READ_CALL_H_
#define JAXKERNELS_ROWS_READ_CALL_H_

#include <cstdint>
#include <string_view>
#include <utility>

#include "core/checks.h"
#include "rows/call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// Operands are the first input of the operation, the mask if there is one, the second input if the
// operation has two, the labels if it takes them, and the row scalars if it takes some, in this
// order. Row scalars, taken or stored, have their number in place of the last dimension of the
// first input, and its dtype or, for half types, float32. Labels have 1 there, and are int32.
// Scale, band and mask are of the operations on attention scores; of others the scale is 1 and the
// band open (MaskedRows::kUnbounded on both sides). all_sums is of cross entropy.

// The operands -> elements, row scalars, or both, as the operation stores them.
template <typename Binding>
auto BindWhole(Binding&& binding) {
  return std::forward<Binding>(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("operation")
      .template Attr<std::string_view>("tier")
      .template Attr<double>("scale")
      .template Attr<int64_t>("left")  // row i of a matrix sees columns i + left .. i + right,
      .template Attr<int64_t>("right")
      .template Attr<bool>("from_end")  // counted from the last row and column, not the first
      .template Attr<bool>("has_mask")
      .template Attr<bool>("all_sums");
}
ffi::Error ReadWhole(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                     std::string_view operation, std::string_view tier, double scale, int64_t left,
                     int64_t right, bool from_end, bool has_mask, bool all_sums, RowCall* call);

// The operands, without labels and row scalars -> the statistics of their rows.
template <typename Binding>
auto BindStatistics(Binding&& binding) {
  return std::forward<Binding>(binding)
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .template Attr<std::string_view>("operation")
      .template Attr<double>("scale")
      .template Attr<bool>("has_mask")
      .template Attr<bool>("all_sums");
}
ffi::Error ReadStatistics(const ffi::RemainingArgs& operands,
                          ffi::Result<ffi::AnyBuffer> statistics, std::string_view operation,
                          double scale, bool has_mask, bool all_sums, RowCall* call);

// The statistics of whole rows, and the operands -> the result, of operations that store elements
// alone.
template <typename Binding>
auto BindFinish(Binding&& binding) {
  return BindStatistics(std::forward<Binding>(binding).template Arg<ffi::AnyBuffer>());
}
ffi::Error ReadFinish(ffi::AnyBuffer statistics, const ffi::RemainingArgs& operands,
                      ffi::Result<ffi::AnyBuffer> result, std::string_view operation, double scale,
                      bool has_mask, bool all_sums, RowCall* call);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_READ_CALL_H_
