// The temperature, the soft cap and the mask of rows of logits on the CPU; cuda/logit_scale.cuh has
// CUDA's scales.
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

// Copies n columns of each of `count` rows, from row `row` and column `begin` on, with `value` for
// hidden elements. Does nothing without a mask. `to` may be `from`.
template <typename T>
JK_INLINE void HideRows(const RowCall& call, int64_t row, int64_t count, int64_t begin, int64_t n,
                        T value, const T* from, T* to) {
  for (int64_t r = 0; r < count; ++r, from += n, to += n) {
    const uint8_t* const mask = call.masking.MaskOf(row + r, call.arrays.cols);
    if (mask == nullptr) return;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = mask[begin + i] != 0 ? from[i] : value;
  }
}

// Scales n columns of each of `count` rows, from row `row` and column `begin` on. A hidden element
// becomes -inf.
template <typename C>
JK_INLINE void TransformRows(const RowCall& call, int64_t row, int64_t count, int64_t begin,
                             int64_t n, const C* from, C* to) {
  HideRows(call, row, count, begin, n, -kInf<C>, from, to);
  if (call.masking.mask != nullptr) from = to;
  for (int64_t r = 0; call.scales.count > 0 && r < count; ++r, from += n, to += n) {
    const LogitScale<C> scale(call.scales, row + r);
    if (call.scales.count == 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] * scale.factor;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = Capped(from[i], scale.cap, scale.range);
    }
  }
}

// The derivatives with respect to logits, given those with respect to transformed ones.
template <typename C>
JK_INLINE void FinishGradients(const RowCall& call, int64_t row, int64_t count, int64_t begin,
                               int64_t n, const C* transformed, C* gradient) {
  HideRows(call, row, count, begin, n, C(0), gradient, gradient);
  for (int64_t r = 0; call.scales.count > 1 && r < count; ++r, transformed += n, gradient += n) {
    const LogitScale<C> scale(call.scales, row + r);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gradient[i] *= SlopeAt(transformed[i], scale.inverse_range);
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

// As TransformRows and FinishGradients, for kLanes transposed rows without a mask; those from
// `count` on are padding.
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
