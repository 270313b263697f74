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
  void* out;          // unless the part is kStatistics
  int64_t rows;
  int64_t cols;
};

struct CpuCall {
  Operation operation;
  DType dtype;
  CpuRows rows;
  MaskedRows attention = {};  // of the operations on attention scores
  Part part = Part::kWhole;
  void* statistics = nullptr;  // of the parts: maximum and sum of every row, in the compute type
};

// Computes rows [begin, end) in the calling thread. Every row gives the same bits whichever rows
// stand around it.
void RunRows(const CpuCall& call, int64_t begin, int64_t end);

// The same for one storage type. Each is compiled in a file of its own, kernels_cpu_<dtype>.cc, so
// that they compile side by side.
template <DType kDType>
void RunRowsOf(const CpuCall& call, int64_t begin, int64_t end);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_KERNELS_CPU_H_
