// operation -> loops, for one storage type.
//
// Owns: which operation runs which code. The drivers and operations are inlined into one function
// for each storage type, in kernels_<dtype>.cc, which the compiler makes once for each
// instruction set of JK_TARGET_CLONES (cmake/JaxKernelsSimd.cmake) and chooses from when the module
// is loaded. Must not know: XLA, threads, how a row is walked.
#ifndef JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_
#define JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_

#include <cstdint>

#include "core/numeric_cpu.h"
#include "rows/cpu/attention_rows.h"
#include "rows/cpu/cross_entropy_rows.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_drivers.h"
#include "rows/cpu/row_ops.h"
#include "rows/cpu/row_parts.h"

#ifdef JK_TARGET_CLONES
#define JK_MULTIVERSION __attribute__((target_clones(JK_TARGET_CLONES)))
#else
#define JK_MULTIVERSION
#endif

namespace jaxkernels {

template <typename Op>
JK_INLINE RowArrays SliceRows(const RowArrays& all, int64_t begin, int64_t end) {
  using T = typename Op::Storage;
  const int64_t offset = begin * all.cols;
  const T* const second = static_cast<const T*>(all.in[1]);
  T* const out = static_cast<T*>(all.out);
  return {
      {static_cast<const T*>(all.in[0]) + offset, second == nullptr ? nullptr : second + offset},
      out == nullptr ? nullptr : out + offset,
      end - begin,
      all.cols};
}

template <typename Op>
JK_INLINE void RunPlain(const RowCall& call, int64_t begin, int64_t end) {
  static_assert(MatchesTable<Op>(), "operations.h says otherwise");
  if (call.part == Part::kWhole) {
    RunAll<Op>(SliceRows<Op>(call.arrays, begin, end), {call.scalars_in, call.scalars_out, begin});
  } else {
    RunPart<Op>(call, begin, end);
  }
}

template <typename T>
JK_INLINE void RunOperation(const RowCall& call, int64_t begin, int64_t end) {
  const bool whole = call.part == Part::kWhole;
  switch (call.operation) {
    case SoftmaxForward<T>::kOperation:
      return RunPlain<SoftmaxForward<T>>(call, begin, end);
    case LogSoftmaxForward<T>::kOperation:
      return RunPlain<LogSoftmaxForward<T>>(call, begin, end);
    case SoftmaxGrad<T>::kOperation:
      return RunPlain<SoftmaxGrad<T>>(call, begin, end);
    case LogSoftmaxGrad<T>::kOperation:
      return RunPlain<LogSoftmaxGrad<T>>(call, begin, end);
    case LogSoftmaxJvp<T>::kOperation:
      return RunPlain<LogSoftmaxJvp<T>>(call, begin, end);
    case LogSumExpForward<T>::kOperation:
      return RunPlain<LogSumExpForward<T>>(call, begin, end);
    case LogSumExpGrad<T>::kOperation:
      return RunPlain<LogSumExpGrad<T>>(call, begin, end);
    case LogSumExpJvp<T>::kOperation:
      return RunPlain<LogSumExpJvp<T>>(call, begin, end);
    case CrossEntropyForward<T>::kOperation:
      return RunCrossEntropy<CrossEntropyForward<T>>(call, begin, end);
    case CrossEntropyForwardGrad<T>::kOperation:
      return RunCrossEntropy<CrossEntropyForwardGrad<T>>(call, begin, end);
    case CrossEntropyGrad<T>::kOperation:
      return RunCrossEntropy<CrossEntropyGrad<T>>(call, begin, end);
    case Operation::kMaskedSoftmaxForward:
    case Operation::kBiasedSoftmaxForward:
      return whole ? RunAttentionForward<T>(call.arrays, call.attention, begin, end)
                   : RunAttentionForwardPart<T>(call, begin, end);
    case Operation::kMaskedSoftmaxGrad:
      return whole ? RunAttentionGrad<T>(call.arrays, call.attention, begin, end)
                   : RunAttentionGradPart<T>(call, begin, end);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_
