// The row operations on the CPU: the door between the handlers and the vectorised loops.
//
// Owns: the entry point. Must not know: XLA, threads.
#ifndef JAXKERNELS_SOFTMAX_KERNELS_CPU_H_
#define JAXKERNELS_SOFTMAX_KERNELS_CPU_H_

#include <cstdint>

#include "common/dtype.h"
#include "softmax/masked_rows.h"
#include "softmax/operations.h"

namespace jaxkernels {

struct CpuRows {
  const void* in[2];  // x, or scores and their bias, or y and its cotangent (tangent)
  void* out;
  int64_t rows;
  int64_t cols;
};

// The rows [begin, end) of `all`.
CpuRows SliceRows(const CpuRows& all, DType dtype, int64_t begin, int64_t end);

// Runs `operation` on all of `rows` in the calling thread. Every row gives the same bits whichever
// rows stand around it.
void RunRows(DType dtype, Operation operation, const CpuRows& rows);

// Runs an operation on attention scores on rows [begin, end) of `all`, whose second input may be a
// bias that broadcasts.
void RunAttentionRows(DType dtype, Operation operation, const CpuRows& all,
                      const MaskedRows& attention, int64_t begin, int64_t end);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_KERNELS_CPU_H_
