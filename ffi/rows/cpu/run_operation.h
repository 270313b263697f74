// Dispatches an operation to its loops, for one storage type.
//
// Owns: the code that each operation runs. kernels_*.cc instantiate it for one storage type each,
// so that they compile in parallel. Must not know: XLA, threads, the loops over rows.
#pragma once

#include "core/instruction_sets.h"
#include "rows/cpu/attention_rows.h"
#include "rows/cpu/cross_entropy_ops.h"
#include "rows/cpu/kernels.h"
#include "rows/cpu/row_drivers.h"
#include "rows/ops/all.h"

namespace jaxkernels {

template <typename... Ops>
JK_INLINE void RunAmong(OperationList<Ops...>, const RowCall& call, const RowRange& range) {
  ((call.operation == Ops::kOperation ? RunRange<Ops>(call, range) : void()), ...);
}

template <typename T, bool kAll>
using LossOps = OperationList<CrossEntropyForward<T, kAll>, CrossEntropyForwardGrad<T, kAll>,
                              CrossEntropyGradOp<Cpu<T>>>;

template <typename T>
JK_INLINE void RunOperation(const RowCall& call, const RowRange& range) {
  static_assert(IsListOf(PlainOps<Cpu<T>>(), &OperationTraits::IsPlain), "wrong ops/all.h");
  static_assert(IsListOf(LossOps<T, true>(), &OperationTraits::TakesLabel), "wrong LossOps");
  if (TraitsOf(call.operation).TakesLabel()) {
    return call.all_sums ? RunAmong(LossOps<T, true>(), call, range)
                         : RunAmong(LossOps<T, false>(), call, range);
  }
  if (!HidesElements(call.operation)) return RunAmong(PlainOps<Cpu<T>>(), call, range);
  if (TraitsOf(call.operation).finds_max) return RunAttentionForward<T>(call, range);
  OnThisMachine<RunAttentionGrad<T>>(call, range);
}

template <typename T>
void RunRowsOf(const RowCall& call, const RowRange& range) {
  RunOperation<T>(call, range);
}

}  // namespace jaxkernels
