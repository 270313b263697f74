// The temperature and the soft cap of a row of logits on the CPU; cuda/logit_scale.cuh has CUDA's.
//
// Owns: the transform of elements in the compute type, and its derivative. Must not know: how rows
// are loaded and reduced, XLA, threads.
#pragma once

#include <cstdint>

#include "core/math_cpu.h"
#include "core/numeric_cpu.h"
#include "rows/call.h"
#include "rows/cpu/vectors.h"

namespace jaxkernels {

// The scales of a row. Logits x become cap tanh(x / cap) / temperature, or x / temperature without
// a cap; -inf stays -inf.
template <typename C>
struct LogitScale {
  C factor = 1;                             // 1 / temperature
  C cap = 1, range = 0, inverse_range = 0;  // range: cap / temperature, if there is a cap

  LogitScale() = default;
  JK_INLINE LogitScale(const RowScales& scales, int64_t row) {
    if (scales.data == nullptr) return;
    const C* const of_row = static_cast<const C*>(scales.data) + row * scales.count;
    factor = C(1) / of_row[0];
    if (scales.count == 1) return;
    cap = of_row[1], range = cap / of_row[0], inverse_range = C(1) / range;
  }
};

// float32 errs by less than 4 units in the last place, with x * (1 / cap) by up to 4.7.
template <typename C>
JK_INLINE C Capped(C x, C cap, C range) {
  return x == -kInf<C> ? x : range * Tanh(x / cap);
}
// The derivative of Capped, divided by `factor`, given its result; finite, and 0 at -inf.
template <typename C>
JK_INLINE C SlopeAt(C capped, C inverse_range) {
  const C scaled = capped * inverse_range;
  const C ratio = scaled > C(-1) ? scaled : C(-1);
  return C(1) - ratio * ratio;
}

// Transforms `count` rows of n logits from row `row` on.
template <typename C>
JK_INLINE void ScaleRows(const RowScales& scales, int64_t row, int64_t count, int64_t n,
                         const C* from, C* to) {
  for (int64_t r = 0; r < count; ++r, from += n, to += n) {
    const LogitScale<C> scale(scales, row + r);
    if (scales.count == 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] * scale.factor;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = Capped(from[i], scale.cap, scale.range);
    }
  }
}

// Multiplies derivatives with respect to capped logits by the derivative of the cap.
template <typename C>
JK_INLINE void MultiplyBySlopes(const RowScales& scales, int64_t row, int64_t count, int64_t n,
                                const C* capped, C* gradient) {
  for (int64_t r = 0; r < count; ++r, capped += n, gradient += n) {
    const LogitScale<C> scale(scales, row + r);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gradient[i] *= SlopeAt(capped[i], scale.inverse_range);
  }
}

// The scales of a group of rows, one in each lane.
template <typename C>
struct GroupScales {
  alignas(64) C factor[kLanes], cap[kLanes], range[kLanes], inverse_range[kLanes];

  JK_INLINE GroupScales(const RowScales& scales, int64_t row, int64_t count) {
    for (int64_t r = 0; r < kLanes; ++r) {
      const LogitScale<C> scale = r < count ? LogitScale<C>(scales, row + r) : LogitScale<C>();
      factor[r] = scale.factor, cap[r] = scale.cap;
      range[r] = scale.range, inverse_range[r] = scale.inverse_range;
    }
  }
};

// As ScaleRows and MultiplyBySlopes, for kLanes transposed rows; those from `count` on are padding.
template <typename C>
JK_INLINE void ScaleColumns(const RowScales& scales, int64_t row, int64_t count, int64_t size,
                            C* x) {
  const GroupScales<C> scale(scales, row, count);
  for (int64_t i = 0; i < size; i += kLanes) {
    if (scales.count == 1) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) x[i + r] *= scale.factor[r];
    } else {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r)
        x[i + r] = Capped(x[i + r], scale.cap[r], scale.range[r]);
    }
  }
}
template <typename C>
JK_INLINE void MultiplyColumnsBySlopes(const RowScales& scales, int64_t row, int64_t count,
                                       int64_t size, const C* capped, C* gradient) {
  const GroupScales<C> scale(scales, row, count);
  for (int64_t i = 0; i < size; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      gradient[i + r] *= SlopeAt(capped[i + r], scale.inverse_range[r]);
    }
  }
}

}  // namespace jaxkernels
