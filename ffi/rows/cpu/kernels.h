// The row operations on the CPU: the door between the handlers and the vectorised loops.
//
// Owns: the entry point. Must not know: XLA, threads.
#ifndef JAXKERNELS_ROWS_CPU_KERNELS_H_
#define JAXKERNELS_ROWS_CPU_KERNELS_H_

#include <cstdint>

#include "core/dtype.h"
#include "rows/call.h"

namespace jaxkernels {

// Computes rows [begin, end) in the calling thread. Every row gives the same bits whichever rows
// stand around it.
void RunRows(const RowCall& call, int64_t begin, int64_t end);

// The same for one storage type. Each is compiled in a file of its own, kernels_<dtype>.cc, so
// that they compile side by side.
template <DType kDType>
void RunRowsOf(const RowCall& call, int64_t begin, int64_t end);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CPU_KERNELS_H_
