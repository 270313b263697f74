// Rows of logits with a temperature or a soft cap on the CPU: a few rows at a time are transformed
// into a buffer of the compute type, and the operation runs on that.
//
// Owns: the buffers, and the derivative by the logits. Must not know: the operations, XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_SCALED_ROWS_H_
#define JAXKERNELS_ROWS_CPU_SCALED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/numeric_cpu.h"
#include "rows/cpu/kernels.h"
#include "rows/logit_scale.h"

namespace jaxkernels {

template <typename T>
struct LogitArithmetic {
  using C = CpuComputeType<T>;
  JK_INLINE static C Clamp(C v, C bound) { return v > bound ? bound : v < -bound ? -bound : v; }
  JK_INLINE static C Reciprocal(C x) { return 1 / x; }
  JK_INLINE static C Product(C a, C b) { return a * b; }
  JK_INLINE static C TimesTanh(C factor, C v) {
    if constexpr (!std::is_same_v<T, C>) {
      return TimesRoughTanh<LogitArithmetic>(factor, v);
    } else {
      const double below = ExpMinusOne(v < 0 ? 2.0 * v : -2.0 * v), magnitude = below / (2 + below);
      return factor * static_cast<C>(v < 0 ? magnitude : -magnitude);
    }
  }
};

// The arrays of one row; `scaled` is the buffer.
template <typename T>
struct ScaledRow {
  using C = CpuComputeType<T>;
  const T* x;
  T* out;
  C *scaled, *derivative;
  int64_t cols;
  bool has_cap;
  LogitScale<LogitArithmetic<T>> scale;
};

template <typename T>
JK_INLINE void ScaleRow(const ScaledRow<T>& row) {
  using C = CpuComputeType<T>;
  const auto scale = row.scale;
  if (row.has_cap) {
#pragma omp simd
    for (int64_t i = 0; i < row.cols; ++i) {
      const C x = Widen(row.x[i]), capped = scale.Capped(x);
      row.scaled[i] = x == -kInf<C> ? x : capped;
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < row.cols; ++i) row.scaled[i] = Widen(row.x[i]) * scale.factor;
  }
}

// Turns derivatives by transformed logits into derivatives by logits; 0 stays 0.
template <typename T>
JK_INLINE void UnscaleRow(const ScaledRow<T>& row) {
  const auto scale = row.scale;
  if (row.has_cap) {
#pragma omp simd
    for (int64_t i = 0; i < row.cols; ++i) row.derivative[i] *= scale.SlopeAt(row.scaled[i]);
  }
#pragma omp simd
  for (int64_t i = 0; i < row.cols; ++i) {
    const auto derivative = row.derivative[i];
    Narrow(derivative == 0 ? derivative : derivative * scale.factor, &row.out[i]);
  }
}

template <typename T>
void RunScaledRows(const RowCall& call, const RowRange& range) {
  using C = CpuComputeType<T>;
  constexpr int64_t kElements = 16384;  // of a buffer, so that it stays in the cache
  constexpr DType kDType = kDTypeOf<C>;
  const OperationTraits& traits = TraitsOf(call.operation);
  const RowArrays& arrays = call.arrays;
  const int64_t cols = arrays.cols, at_once = std::clamp<int64_t>(kElements / cols, 1, 256);
  const bool stores = arrays.out != nullptr, has_cap = call.scales.count > 1;
  const std::unique_ptr<C[]> room(new C[at_once * cols * (stores ? 2 : 1)]);
  const auto past = [](auto* data, int64_t count) {
    return data == nullptr ? data : static_cast<C*>(data) + count;
  };
  for (int64_t row = range.begin; row < range.end; row += at_once) {
    const int64_t count = std::min(at_once, range.end - row);
    const auto row_of = [&](int64_t r) {
      const C* const scales = static_cast<const C*>(call.scales.data);
      const int64_t at = (row + r) * cols;
      return ScaledRow<T>{static_cast<const T*>(arrays.in[0]) + at,
                          stores ? static_cast<T*>(arrays.out) + at : nullptr,
                          room.get() + r * cols,
                          room.get() + (at_once + r) * cols,
                          cols,
                          has_cap,
                          {scales + (row + r) * call.scales.count, has_cap}};
    };
    for (int64_t r = 0; r < count; ++r) OnThisMachine<ScaleRow<T>>(row_of(r));
    RowCall plain = call;
    plain.scales = {};
    plain.dtype = plain.result_dtype = kDType;
    plain.arrays = {
        {room.get(), nullptr}, stores ? room.get() + at_once * cols : nullptr, count, cols};
    plain.labels = call.labels == nullptr ? nullptr : call.labels + row;
    for (int i = 0; i < 2; ++i) {
      plain.scalars_in[i].data = past(call.scalars_in[i].data, row * traits.operands.RowNumbers(i));
    }
    plain.scalars_out.data = past(call.scalars_out.data, row * traits.Stores());
    plain.statistics = past(call.statistics, row * (1 + SumsOf(traits, kDType)));
    RunRows(plain, {0, count});
    for (int64_t r = 0; stores && r < count; ++r) OnThisMachine<UnscaleRow<T>>(row_of(r));
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_SCALED_ROWS_H_
