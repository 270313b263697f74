// The list of operations on plain rows.
#pragma once

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
