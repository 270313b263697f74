// Dispatches an operation to its loops, for one storage type.
//
// Owns: the code that each operation runs. kernels_<dtype>.cc instantiates it for one storage type,
// so that they compile in parallel. Must not know: XLA, threads, the loops over rows.
#ifndef JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_
#define JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_

#include <cstdint>

#include "core/numeric_cpu.h"
#include "rows/cpu/attention_rows.h"
#include "rows/cpu/cross_entropy_ops.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_drivers.h"
#include "rows/cpu/row_ops.h"

namespace jaxkernels {

template <typename Op>
JK_INLINE void RunPlain(const RowCall& call, const RowRange& range) {
  static_assert(MatchesTable<Op>(), "operations.h says otherwise");
  RunRange<Op>(call, range);
}

template <typename... Ops>
JK_INLINE void RunAmong(OperationList<Ops...>, const RowCall& call, const RowRange& range) {
  ((call.operation == Ops::kOperation ? RunPlain<Ops>(call, range) : void()), ...);
}

template <typename T>
JK_INLINE void RunOperation(const RowCall& call, const RowRange& range) {
  switch (call.operation) {
    case Operation::kCrossEntropyForward:
      return call.all_sums ? RunPlain<CrossEntropyForward<T, true>>(call, range)
                           : RunPlain<CrossEntropyForward<T, false>>(call, range);
    case Operation::kCrossEntropyForwardGrad:
      return call.all_sums ? RunPlain<CrossEntropyForwardGrad<T, true>>(call, range)
                           : RunPlain<CrossEntropyForwardGrad<T, false>>(call, range);
    case Operation::kCrossEntropyGrad:
      return RunPlain<CrossEntropyGrad<T>>(call, range);
    case Operation::kMaskedSoftmaxForward:
    case Operation::kBiasedSoftmaxForward:
      return RunAttentionForward<T>(call, range);
    case Operation::kMaskedSoftmaxGrad:
      return OnThisMachine<RunAttentionGrad<T>>(call, range);
    default:
      return RunAmong(RowOps<T>(), call, range);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_RUN_OPERATION_H_
