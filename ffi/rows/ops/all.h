// The list of operations on plain rows.
#ifndef JAXKERNELS_ROWS_OPS_ALL_H_
#define JAXKERNELS_ROWS_OPS_ALL_H_

#include "rows/ops/log_softmax.h"
#include "rows/ops/logsumexp.h"
#include "rows/ops/rms_norm.h"
#include "rows/ops/softmax.h"

namespace jaxkernels {

// All operations but those of attention scores and cross entropy.
template <typename A>
using PlainOps =
    OperationList<SoftmaxForward<A>, SoftmaxGrad<A>, LogSoftmaxForward<A>, LogSoftmaxGrad<A>,
                  LogSumExpForward<A>, LogSumExpGrad<A>, RmsNormForward<A>, RmsNormGrad<A>>;

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_OPS_ALL_H_
