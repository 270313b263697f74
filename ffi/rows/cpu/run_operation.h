// Dispatches an operation to its loops, for one storage type.
//
// Owns: the code that each operation runs. kernels_<dtype>.cc instantiates it for one storage type,
// so that they compile in parallel. Must not know: XLA, threads, the loops over rows.
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

namespace jaxkernels {

template <typename Op>
JK_INLINE void RunPlain(const RowCall& call, const RowRange& range) {
  static_assert(MatchesTable<Op>(), "operations.h says otherwise");
  if (call.part == Part::kWhole) {
    RunRange<Op>(call.arrays, range, {call.scalars_in, call.scalars_out});
  } else {
    OnThisMachine<RunPart<Op>>(call, range.begin, range.end);
  }
}

template <typename... Ops>
JK_INLINE void RunAmong(OperationList<Ops...>, const RowCall& call, const RowRange& range) {
  ((call.operation == Ops::kOperation ? RunPlain<Ops>(call, range) : void()), ...);
}

template <typename T>
JK_INLINE void RunOperation(const RowCall& call, const RowRange& range) {
  const int64_t begin = range.begin, end = range.end;
  const bool whole = call.part == Part::kWhole;
  switch (call.operation) {
    case Operation::kCrossEntropyForward:
      return RunCrossEntropy<CrossEntropyForward<T>>(call, range);
    case Operation::kCrossEntropyForwardGrad:
      return RunCrossEntropy<CrossEntropyForwardGrad<T>>(call, range);
    case Operation::kCrossEntropyGrad:
      return RunCrossEntropy<CrossEntropyGrad<T>>(call, range);
    case Operation::kMaskedSoftmaxForward:
    case Operation::kBiasedSoftmaxForward:
      return whole ? RunAttentionForward<T>(call, range)
                   : OnThisMachine<RunAttentionForwardPart<T>>(call, begin, end);
    case Operation::kMaskedSoftmaxGrad:
      return whole ? OnThisMachine<RunAttentionGrad<T>>(call, range)
                   : OnThisMachine<RunAttentionGradPart<T>>(call, begin, end);
    default:
      return RunAmong(RowOps<T>(), call, range);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_
