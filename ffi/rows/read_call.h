// FFI signatures of the row operations, and the parser from an XLA call to a RowCall, for the CPU
// and CUDA alike.
//
// Owns: operands, results and attributes of the targets. Must not know: any device; `binding` adds
// device contexts (a stream or a thread pool).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "core/checks.h"
#include "rows/call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// The operands come in the order of operations.h. Row scalars, read or stored, have the shape of
// the first input with their count as the last dimension. Their dtype is that of the first input
// or, for half types, also float32. Labels are int32 with last dimension 1. Scale, band and mask
// are for attention operations; for others the scale is 1 and the band unbounded
// (MaskedRows::kUnbounded on both sides). Operations that average have their epsilon in the scale:
// exported programs hold these attributes, so a target with another one would need another name.
// all_sums is for cross entropy.

// Whole operation: maps the operands to elements, row scalars or both, as the table says.
template <typename Binding>
auto BindWhole(Binding&& binding) {
  return std::forward<Binding>(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("operation")
      .template Attr<std::string_view>("tier")
      .template Attr<double>("scale")
      .template Attr<int64_t>("left")  // visible to row i: columns i + left .. i + right,
      .template Attr<int64_t>("right")
      .template Attr<bool>("from_end")  // counted from the last row and column, not the first
      .template Attr<bool>("has_mask")
      .template Attr<bool>("all_sums");
}
ffi::Error ReadWhole(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                     std::string_view operation, std::string_view tier, double scale, int64_t left,
                     int64_t right, bool from_end, bool has_mask, bool all_sums, RowCall* call);

// Statistics part: maps the operands, without labels and row scalars, to statistics of rows.
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

// Finish part: maps the statistics of whole rows and the operands to the result, for operations
// that store elements only.
template <typename Binding>
auto BindFinish(Binding&& binding) {
  return BindStatistics(std::forward<Binding>(binding).template Arg<ffi::AnyBuffer>());
}
ffi::Error ReadFinish(ffi::AnyBuffer statistics, const ffi::RemainingArgs& operands,
                      ffi::Result<ffi::AnyBuffer> result, std::string_view operation, double scale,
                      bool has_mask, bool all_sums, RowCall* call);

}  // namespace jaxkernels
