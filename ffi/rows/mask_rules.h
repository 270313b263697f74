// Launch rule for the order of rows under a shared mask, in all tiers.
#pragma once

#include <cstdint>

#include "core/device_limits.h"
#include "rows/masked_rows.h"

namespace jaxkernels {

// Rows are reordered if at least this memory traffic lies between two uses of a row of the mask.
// The L2 cache of an H200 has 50 MB. Time relative to a copy, tier block:
// H200 bf16 8192 cols, mask of 67 MB for 16 heads: 1.26; reordered and with a branch around whole
// packs 1.15
// H200 bf16 4096 cols: 1.14, only reordered 1.13
inline constexpr ByArch<int64_t> kMaskReuseBytes = {.hopper = 32 * 1024 * 1024};

// `row_bytes`: memory traffic per row of the scores.
inline RowOrder OrderOfRows(const BroadcastRows& mask, int64_t rows, int64_t row_bytes, Arch arch) {
  const bool shared_outside = mask.dims == 1 || (mask.dims > 1 && mask.dim[1].stride == 0);
  if (!shared_outside || mask.dim[0].stride == 0) return {};
  const int64_t inner = mask.dim[0].size;
  if (inner * row_bytes < kMaskReuseBytes[arch]) return {};
  return {mask.dims == 1 ? rows / inner : mask.dim[1].size, inner, rows};
}

}  // namespace jaxkernels
