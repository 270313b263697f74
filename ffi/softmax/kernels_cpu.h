// The row operations on the CPU: the door between the handlers and the vectorised loops.
//
// Owns: the entry point. Must not know: XLA, threads.
#ifndef JAXKERNELS_SOFTMAX_KERNELS_CPU_H_
#define JAXKERNELS_SOFTMAX_KERNELS_CPU_H_

#include <cstdint>

#include "common/dtype.h"
#include "softmax/operations.h"

namespace jaxkernels {

struct CpuRows {
  const void*
      in[2];  // x, or y and its cotangent (tangent); the second is unused by forward operations
  void* out;
  int64_t rows;
  int64_t cols;
};

// The rows [begin, end) of `all`.
CpuRows SliceRows(const CpuRows& all, DType dtype, int64_t begin, int64_t end);

// Runs `operation` on all of `rows` in the calling thread. Every row gives the same bits whichever
// rows stand around it.
void RunRows(DType dtype, Operation operation, const CpuRows& rows);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_KERNELS_CPU_H_
