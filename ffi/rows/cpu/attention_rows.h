// Attention operations on the CPU: rows are loaded into a buffer in the compute type, scaled,
// biased and masked; then the plain operations run on the buffer. A band gives each row its own
// length, which determines its driver.
//
// Owns: the loads and stores of a row. Must not know: how a row is reduced (row_drivers.h), XLA,
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/instruction_sets.h"
#include "core/numeric_cpu.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_drivers.h"
#include "rows/masked_rows.h"
#include "rows/ops/softmax.h"

namespace jaxkernels {

// Number of rows per call of a driver. Short rows are processed in groups, which compute outside
// their bands too.
// EPYC (Zen 4), 2026-11, ns per element of causal float32 scores, single rows and groups: 128
// columns 1.14, 0.78; 256 columns 0.79, 0.72; 512 columns 0.56, 0.66
inline constexpr int64_t kMostBandCompanyCols = 128;
inline int64_t RowsAtOnce(const MaskedRows& attention, int64_t cols) {
  return cols <= (attention.IsOpen() ? 512 : kMostBandCompanyCols) ? kLanes : 1;
}

template <typename C>
RowCall OnBuffers(const RowCall& call, const C* first, const C* second, C* out) {
  RowCall on = call;
  on.arrays.in[0] = first, on.arrays.in[1] = second, on.arrays.out = out;
  return on;
}

// Loads t = scale * x + bias for visible columns of `range` and -inf for hidden ones. Returns
// whether any element is not -inf.
template <typename T>
JK_INLINE bool LoadScores(const RowCall& call, int64_t row, const ColumnRange& range,
                          CpuComputeType<T>* t, CpuComputeType<T>* buffer) {
  using C = CpuComputeType<T>;
  const RowArrays& all = call.arrays;
  const MaskedRows& attention = call.masking;
  const int64_t n = range.end - range.begin;
  const C scale = static_cast<C>(attention.scale);
  const int64_t at = row * all.cols + range.begin;
  const C* const x = Load(static_cast<const T*>(all.in[0]) + at, call.dtype, n, t);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) t[i] = scale * x[i];
  if (all.in[1] != nullptr) {
    const int64_t first = attention.bias_rows.Of(row) * all.cols + range.begin;
    const C* const bias = Load(static_cast<const T*>(all.in[1]) + first, call.dtype, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) t[i] += bias[i];
  }
  if (const uint8_t* mask = attention.MaskOf(row, all.cols)) {
    mask += range.begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) t[i] = mask[i] != 0 ? t[i] : -kInf<C>;
  }
  int64_t seen = 0;
#pragma omp simd reduction(+ : seen)
  for (int64_t i = 0; i < n; ++i) seen += t[i] == -kInf<C> ? 0 : 1;  // NaN counts
  return seen > 0;
}

// Loads y and dy of a row. If y is zero, as for masked elements, dy is set to zero, even a NaN.
template <typename T>
JK_INLINE void LoadGradient(const RowCall& call, int64_t row, const ColumnRange& range,
                            CpuComputeType<T>* y, CpuComputeType<T>* dy) {
  using C = CpuComputeType<T>;
  const RowArrays& all = call.arrays;
  const int64_t n = range.end - range.begin, first = row * all.cols + range.begin;
  const C* const of_y = Load(static_cast<const T*>(all.in[0]) + first, call.dtype, n, y);
  const C* const of_dy = Load(static_cast<const T*>(all.in[1]) + first, call.dtype, n, dy);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const C one = of_y[i], other = of_dy[i];  // loads first: a selected load is masked
    y[i] = one, dy[i] = one == C(0) ? C(0) : other;
  }
}

template <typename C>
JK_INLINE void FillOutside(const ColumnRange& band, int64_t n, C fill, C* row) {
  std::fill(row, row + band.begin, fill);
  std::fill(row + band.end, row + n, fill);
}

// Processes rows, or one step of a segment of a row that threads share. `load(row, range, first,
// second, buffer)` loads columns `range` of a row, and returns whether any is visible.
// `finish(n, first, results)` post-processes results, which are stored as `Result`.
template <typename Op, typename Result, typename Load, typename Finish>
JK_INLINE void RunMasked(const RowCall& call, const RowRange& of, Load load, Finish finish) {
  using C = typename Op::C;
  const MaskedRows& attention = call.masking;
  const int64_t cols = call.arrays.cols;
  Result* const out = static_cast<Result*>(call.arrays.out);
  if (of.step != RowStep::kAll) {
    const int64_t count = SegmentCount(cols), size = SegmentCols(cols);
    const int64_t row = of.begin / count, s = of.begin % count, begin = s * size;
    const int64_t end = s + 1 == count ? cols : begin + size, at = row * cols + begin;
    const int64_t elements = call.arrays.rows * cols;
    C* const first = static_cast<C*>(of.room);
    C* const second = Op::kInputs == 2 ? first + elements : first;
    C* const results = ResultBuffer(out, second + elements);
    SegmentStatistics* const segments = of.segments + row * count;
    if (of.step == FirstStep(call.operation, call.dtype)) {
      const ColumnRange columns = {static_cast<int>(begin), static_cast<int>(end)};
      segments[s].sees = load(row, columns, first + at, second + at, results + at);
    }
    OnThisMachine<RunWide<Op, 0>>(OnBuffers(call, first, second, results), of);
    if (of.step != RowStep::kResults) return;
    const bool sees =
        std::any_of(segments, segments + count, [](const auto& one) { return one.sees; });
    finish(end - begin, first + at, results + at);
    if (!sees) std::fill(results + at, results + at + (end - begin), C(0));
    return Flush(results + at, call.result_dtype, end - begin, out + at);
  }
  const int64_t step = RowsAtOnce(attention, cols), size = step * cols;
  const Buffer<C> first(size), second(Op::kInputs == 2 ? size : 0), buffer(size);
  RowCall on = OnBuffers<C>(call, first.data(), second.data(), nullptr);
  constexpr Result kZero = {};
  for (int64_t group = of.begin; group < of.end; group += step) {
    const int64_t rows = std::min(step, of.end - group);
    // The rows of a group have the full length; a single row has the length of its band.
    ColumnRange range = {0, static_cast<int>(cols)};
    if (step == 1) range = attention.ColumnsOf(group, cols);
    const int64_t n = range.end - range.begin;
    bool sees[kLanes];
    for (int64_t r = 0; r < rows; ++r) {
      const ColumnRange band = attention.ColumnsOf(group + r, cols);
      const ColumnRange inner = {band.begin - range.begin, band.end - range.begin};
      C* const x = first.data() + r * n;
      C* const other = second.data() + (Op::kInputs == 2 ? r * n : 0);
      FillOutside(inner, n, Op::kUsesMax ? -kInf<C> : C(0), x);
      if (Op::kInputs == 2) FillOutside(inner, n, C(0), other);
      sees[r] = load(group + r, band, x + inner.begin, other + inner.begin, buffer.data());
      if (Op::kUsesMax && call.part == Part::kFinish) {
        sees[r] = StatisticsOf<C>(call, group + r)[1] != C(0);
      }
    }
    Result* const to = out + group * cols;
    C* const results = ResultBuffer(to + range.begin, buffer.data());
    on.arrays.rows = rows, on.arrays.cols = n, on.arrays.out = results;
    if (call.part != Part::kWhole) on.statistics = static_cast<C*>(call.statistics) + 2 * group;
    if (n > 0) RunRange<Op>(on, {0, rows}, step > 1);
    if (call.part == Part::kStatistics) continue;
    finish(rows * n, first.data(), results);
    Flush(results, call.result_dtype, rows * n, to + range.begin);
    for (int64_t r = 0; r < rows; ++r) {
      const ColumnRange stored = sees[r] ? range : ColumnRange{0, 0};
      FillOutside(stored, cols, kZero, to + r * cols);
    }
  }
}

// The arithmetic on rows that are loaded in the compute type.
template <typename T>
using OfLoaded = Cpu<CpuComputeType<T>, Cpu<T>::kIsHalf>;

template <typename T, typename Result>
JK_INLINE void RunAttentionForwardAs(const RowCall& call, const RowRange& range) {
  using C = CpuComputeType<T>;
  RunMasked<SoftmaxForward<OfLoaded<T>>, Result>(
      call, range,
      [&](int64_t row, const ColumnRange& columns, C* t, C*, C* buffer)
          JK_INLINE_LAMBDA { return LoadScores<T>(call, row, columns, t, buffer); },
      [](int64_t, const C*, C*) JK_INLINE_LAMBDA {});
}

// Dispatches on the result type: results of float32 scores may have a half type.
template <typename T>
JK_INLINE void RunAttentionForward(const RowCall& call, const RowRange& range) {
  if constexpr (std::is_same_v<T, float>) {
    if (IsHalf(call.result_dtype)) {
      return OnThisMachine<RunAttentionForwardAs<T, Half>>(call, range);
    }
  }
  OnThisMachine<RunAttentionForwardAs<T, T>>(call, range);
}

template <typename T>
JK_INLINE void RunAttentionGrad(const RowCall& call, const RowRange& range) {
  using C = CpuComputeType<T>;
  const C scale = static_cast<C>(call.masking.scale);
  RunMasked<SoftmaxGrad<OfLoaded<T>>, T>(
      call, range,
      [&](int64_t row, const ColumnRange& columns, C* y, C* dy, C*) JK_INLINE_LAMBDA {
        LoadGradient<T>(call, row, columns, y, dy);
        return true;
      },
      [=](int64_t n, const C* y, C* dx) JK_INLINE_LAMBDA {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) dx[i] = y[i] == C(0) ? C(0) : scale * dx[i];
      });
}

}  // namespace jaxkernels
