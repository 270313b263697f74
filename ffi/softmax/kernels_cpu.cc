// The loops of the row operations on the CPU.
//
// Owns: how a row is walked. Everything below is inlined into one function per storage type, which
// the compiler makes once for each instruction set of JK_TARGET_CLONES (CMakeLists.txt) and chooses
// from when the module is loaded. Must not know: XLA, threads, which operation does what.
#include "softmax/kernels_cpu.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/numeric_cpu.h"
#include "softmax/row_ops_cpu.h"

#ifdef JK_TARGET_CLONES
#define JK_MULTIVERSION __attribute__((target_clones(JK_TARGET_CLONES)))
#else
#define JK_MULTIVERSION
#endif

namespace jaxkernels {
namespace {

// Elements summed in the compute type before the sum goes on in double: short enough for float32 to
// lose less than half a unit in the last place.
constexpr int64_t kSumTile = 512;

// Loops of exactly this length fill the widest vector registers.
constexpr int64_t kLanes = 16;

// Rows up to this length are computed kLanes at a time, one row in each lane.
constexpr int64_t kNarrowCols = 15;

// Summands of half storage types are kept on the stack in rows up to this length, else computed twice.
constexpr int64_t kKeptTerms = 4096;

template <typename Op>
struct Inputs {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const T* first;
  const T* second;  // null unless the operation reads two arrays

  JK_INLINE C First(int64_t i) const { return Widen(first[i]); }
  JK_INLINE C Second(int64_t i) const {
    if constexpr (Op::kInputs == 1) return C(0);
    return Widen(second[i]);
  }
  JK_INLINE Inputs At(int64_t i) const {
    return {first + i, Op::kInputs == 1 ? nullptr : second + i};
  }
};

template <typename Op>
JK_INLINE typename Op::C MaxOf(const Inputs<Op>& in, int64_t n, typename Op::C max) {
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) {
    const typename Op::C value = in.First(i);
    max = value > max ? value : max;  // passes over NaN, which the sum will find
  }
  return max;
}

// The sum of n terms, which are also kept in `terms` if kKeep.
template <typename Op, bool kKeep>
JK_INLINE double SumOf(const Inputs<Op>& in, int64_t n, typename Op::C max, typename Op::C* terms) {
  using C = typename Op::C;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumTile) {
    const int64_t end = n - begin < kSumTile ? n : begin + kSumTile;
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      const C term = Op::Term(in.First(i), in.Second(i), max);
      sum += term;
      if constexpr (kKeep) terms[i] = term;
    }
    total += sum;
  }
  return total;
}

// The same for kLanes terms, of which the first `skip` are kept but not added.
template <typename Op, bool kKeep>
JK_INLINE double SumOfLast(const Inputs<Op>& in, int skip, typename Op::C max,
                           typename Op::C* terms) {
  using C = typename Op::C;
  C sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < kLanes; ++i) {
    const C term = Op::Term(in.First(i), in.Second(i), max);
    sum += i < skip ? C(0) : term;
    if constexpr (kKeep) terms[i] = term;
  }
  return sum;
}

template <typename Op, bool kKeep>
JK_INLINE void Store(const Inputs<Op>& in, int64_t n, const typename Op::Row& row,
                     const typename Op::C* terms, typename Op::Storage* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kKeep) {
      Narrow(Op::FinishTerm(terms[i], row), &out[i]);
    } else {
      Narrow(Op::Finish(in.First(i), in.Second(i), row), &out[i]);
    }
  }
}

// One row of at least kLanes elements. Whole vectors first; what is left is computed with the last
// kLanes elements of the row, some of which are then computed twice. `terms` may be `out`.
template <typename Op, bool kKeep>
JK_INLINE void RunWideRow(const Inputs<Op>& in, int64_t cols, typename Op::C* terms,
                          typename Op::Storage* out) {
  using C = typename Op::C;
  const int64_t whole = cols / kLanes * kLanes;
  const bool has_rest = whole < cols;
  const int64_t last = cols - kLanes;
  const Inputs<Op> last_in = in.At(last);
  C last_terms[kLanes];

  C max = -kInf<C>;
  if constexpr (Op::kUsesMax) {
    max = MaxOf(in, whole, max);
    if (has_rest) max = MaxOf(last_in, kLanes, max);
  }
  double sum = SumOf<Op, kKeep>(in, whole, max, terms);
  if (has_rest) {
    const int skip = static_cast<int>(whole - last);
    sum += SumOfLast<Op, kKeep>(last_in, skip, max, last_terms);
  }
  const typename Op::Row row = Op::MakeRow(max, sum);
  Store<Op, kKeep>(in, whole, row, terms, out);
  if (has_rest) Store<Op, kKeep>(last_in, kLanes, row, last_terms, out + last);
}

template <typename Op>
JK_INLINE void RunWide(const Inputs<Op>& in, const CpuRows& rows, typename Op::Storage* out) {
  using T = typename Op::Storage;
  using C = typename Op::C;
  const int64_t cols = rows.cols;
  if constexpr (Op::kKeepsTerm && std::is_same_v<T, C>) {
    for (int64_t i = 0; i < rows.rows * cols; i += cols) {
      RunWideRow<Op, true>(in.At(i), cols, out + i, out + i);
    }
    return;
  } else if constexpr (Op::kKeepsTerm) {
    if (cols <= kKeptTerms) {
      C terms[kKeptTerms];
      for (int64_t i = 0; i < rows.rows * cols; i += cols) {
        RunWideRow<Op, true>(in.At(i), cols, terms, out + i);
      }
      return;
    }
  }
  for (int64_t i = 0; i < rows.rows * cols; i += cols) {
    RunWideRow<Op, false>(in.At(i), cols, nullptr, out + i);
  }
}

// to[column][row] = from[row][column], for kLanes rows
template <typename T, typename C>
JK_INLINE void LoadColumns(const T* from, int64_t cols, C* to) {
  C wide[kLanes * kNarrowCols];
#pragma omp simd
  for (int64_t i = 0; i < kLanes * cols; ++i) wide[i] = Widen(from[i]);
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < kLanes; ++r) to[c * kLanes + r] = wide[r * cols + c];
  }
}

// to[row][column] = from[column][row]
template <typename T, typename C>
JK_INLINE void StoreColumns(const C* from, int64_t cols, T* to) {
  C wide[kLanes * kNarrowCols];
  for (int64_t r = 0; r < kLanes; ++r) {
    for (int64_t c = 0; c < cols; ++c) wide[r * cols + c] = from[c * kLanes + r];
  }
#pragma omp simd
  for (int64_t i = 0; i < kLanes * cols; ++i) Narrow(wide[i], &to[i]);
}

// kLanes rows of at most kNarrowCols elements, each in its own lane.
template <typename Op>
JK_INLINE void RunNarrowGroup(const Inputs<Op>& in, int64_t cols, typename Op::Storage* out) {
  using C = typename Op::C;
  C first[kLanes * kNarrowCols], second[kLanes * kNarrowCols];
  C max[kLanes], sum[kLanes], extra[kLanes];
  LoadColumns(in.first, cols, first);
  if constexpr (Op::kInputs == 2) LoadColumns(in.second, cols, second);

  for (int64_t r = 0; r < kLanes; ++r) max[r] = -kInf<C>, sum[r] = 0;
  if constexpr (Op::kUsesMax) {
    for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
      for (int64_t r = 0; r < kLanes; ++r) max[r] = first[i + r] > max[r] ? first[i + r] : max[r];
    }
  }
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      sum[r] += Op::Term(first[i + r], Op::kInputs == 2 ? second[i + r] : C(0), max[r]);
    }
  }
#pragma omp simd
  for (int64_t r = 0; r < kLanes; ++r) {
    const typename Op::Row row = Op::MakeRow(max[r], double(sum[r]));
    max[r] = row.max, sum[r] = row.sum, extra[r] = row.extra;
  }
  for (int64_t i = 0; i < kLanes * cols; i += kLanes) {
#pragma omp simd
    for (int64_t r = 0; r < kLanes; ++r) {
      const typename Op::Row row = {max[r], sum[r], extra[r]};
      first[i + r] = Op::Finish(first[i + r], Op::kInputs == 2 ? second[i + r] : C(0), row);
    }
  }
  StoreColumns(first, cols, out);
}

template <typename Op>
JK_INLINE void RunNarrow(const Inputs<Op>& in, const CpuRows& rows, typename Op::Storage* out) {
  using T = typename Op::Storage;
  const int64_t cols = rows.cols;
  const int64_t groups = rows.rows / kLanes;
  for (int64_t i = 0; i < groups * kLanes * cols; i += kLanes * cols) {
    RunNarrowGroup(in.At(i), cols, out + i);
  }
  // The last rows stand in a group with rows of zeros.
  const int64_t done = groups * kLanes * cols;
  const int64_t left = rows.rows * cols - done;
  if (left == 0) return;
  T first[kLanes * kNarrowCols] = {}, second[kLanes * kNarrowCols] = {};
  T result[kLanes * kNarrowCols];
  for (int64_t i = 0; i < left; ++i) first[i] = in.first[done + i];
  if constexpr (Op::kInputs == 2) {
    for (int64_t i = 0; i < left; ++i) second[i] = in.second[done + i];
  }
  RunNarrowGroup<Op>({first, second}, cols, result);
  for (int64_t i = 0; i < left; ++i) out[done + i] = result[i];
}

template <typename Op>
JK_INLINE void RunAll(const CpuRows& rows) {
  using T = typename Op::Storage;
  const Inputs<Op> in = {static_cast<const T*>(rows.in[0]), static_cast<const T*>(rows.in[1])};
  if (rows.cols <= kNarrowCols) {
    RunNarrow(in, rows, static_cast<T*>(rows.out));
  } else {
    RunWide(in, rows, static_cast<T*>(rows.out));
  }
}

template <typename T>
JK_INLINE void RunOperation(Operation operation, const CpuRows& rows) {
  switch (operation) {
    case Operation::kSoftmaxForward:
      return RunAll<SoftmaxForward<T>>(rows);
    case Operation::kLogSoftmaxForward:
      return RunAll<LogSoftmaxForward<T>>(rows);
    case Operation::kSoftmaxGrad:
      return RunAll<SoftmaxGrad<T>>(rows);
    case Operation::kLogSoftmaxGrad:
      return RunAll<LogSoftmaxGrad<T>>(rows);
    case Operation::kLogSoftmaxJvp:
      return RunAll<LogSoftmaxJvp<T>>(rows);
  }
}

JK_MULTIVERSION void RunFloat32(Operation operation, const CpuRows& rows) {
  RunOperation<float>(operation, rows);
}
JK_MULTIVERSION void RunBFloat16(Operation operation, const CpuRows& rows) {
  RunOperation<BFloat16>(operation, rows);
}
JK_MULTIVERSION void RunFloat16(Operation operation, const CpuRows& rows) {
  RunOperation<Float16>(operation, rows);
}
JK_MULTIVERSION void RunFloat64(Operation operation, const CpuRows& rows) {
  RunOperation<double>(operation, rows);
}

}  // namespace

CpuRows SliceRows(const CpuRows& all, DType dtype, int64_t begin, int64_t end) {
  const int64_t offset = begin * all.cols * ByteWidth(dtype);
  const auto* first = static_cast<const std::byte*>(all.in[0]);
  const auto* second = static_cast<const std::byte*>(all.in[1]);
  return {{first + offset, second == nullptr ? nullptr : second + offset},
          static_cast<std::byte*>(all.out) + offset,
          end - begin,
          all.cols};
}

void RunRows(DType dtype, Operation operation, const CpuRows& rows) {
  switch (dtype) {
    case DType::kFloat32:
      return RunFloat32(operation, rows);
    case DType::kBFloat16:
      return RunBFloat16(operation, rows);
    case DType::kFloat16:
      return RunFloat16(operation, rows);
    case DType::kFloat64:
      return RunFloat64(operation, rows);
  }
}

}  // namespace jaxkernels
