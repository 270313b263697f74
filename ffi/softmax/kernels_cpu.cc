// The row operations on the CPU, compiled once for each instruction set.
//
// Owns: which storage type and operation runs which code. The drivers and operations are inlined
// into one function per storage type, which the compiler makes once for each instruction set of
// JK_TARGET_CLONES (cmake/JaxKernelsSimd.cmake) and chooses from when the module is loaded. Must
// not know: XLA, threads, how a row is walked.
#include "softmax/kernels_cpu.h"

#include <cstddef>
#include <cstdint>

#include "common/numeric_cpu.h"
#include "softmax/attention_rows_cpu.h"
#include "softmax/row_drivers_cpu.h"
#include "softmax/row_ops_cpu.h"

#ifdef JK_TARGET_CLONES
#define JK_MULTIVERSION __attribute__((target_clones(JK_TARGET_CLONES)))
#else
#define JK_MULTIVERSION
#endif

namespace jaxkernels {
namespace {

template <typename T>
JK_INLINE void RunOperation(Operation operation, const CpuRows& rows) {
  switch (operation) {
    case Operation::kSoftmaxForward:
      return RunAll<SoftmaxForward<T>>(rows);
    case Operation::kLogSoftmaxForward:
      return RunAll<LogSoftmaxForward<T>>(rows);
    case Operation::kSoftmaxGrad:
      return RunAll<SoftmaxGrad<T>>(rows);
    case Operation::kLogSoftmaxGrad:
      return RunAll<LogSoftmaxGrad<T>>(rows);
    case Operation::kLogSoftmaxJvp:
      return RunAll<LogSoftmaxJvp<T>>(rows);
    default:
      return;  // RunAttentionRows serves the others
  }
}

template <typename T>
JK_INLINE void RunAttention(Operation operation, const CpuRows& all, const MaskedRows& attention,
                            int64_t begin, int64_t end) {
  if (operation == Operation::kMaskedSoftmaxGrad) {
    RunAttentionGrad<T>(all, attention, begin, end);
  } else {
    RunAttentionForward<T>(all, attention, begin, end);
  }
}

JK_MULTIVERSION void RunFloat32(Operation operation, const CpuRows& rows) {
  RunOperation<float>(operation, rows);
}
JK_MULTIVERSION void RunBFloat16(Operation operation, const CpuRows& rows) {
  RunOperation<BFloat16>(operation, rows);
}
JK_MULTIVERSION void RunFloat16(Operation operation, const CpuRows& rows) {
  RunOperation<Float16>(operation, rows);
}
JK_MULTIVERSION void RunFloat64(Operation operation, const CpuRows& rows) {
  RunOperation<double>(operation, rows);
}

JK_MULTIVERSION void RunAttentionFloat32(Operation operation, const CpuRows& all,
                                         const MaskedRows& attention, int64_t begin, int64_t end) {
  RunAttention<float>(operation, all, attention, begin, end);
}
JK_MULTIVERSION void RunAttentionBFloat16(Operation operation, const CpuRows& all,
                                          const MaskedRows& attention, int64_t begin, int64_t end) {
  RunAttention<BFloat16>(operation, all, attention, begin, end);
}
JK_MULTIVERSION void RunAttentionFloat16(Operation operation, const CpuRows& all,
                                         const MaskedRows& attention, int64_t begin, int64_t end) {
  RunAttention<Float16>(operation, all, attention, begin, end);
}
JK_MULTIVERSION void RunAttentionFloat64(Operation operation, const CpuRows& all,
                                         const MaskedRows& attention, int64_t begin, int64_t end) {
  RunAttention<double>(operation, all, attention, begin, end);
}

}  // namespace

CpuRows SliceRows(const CpuRows& all, DType dtype, int64_t begin, int64_t end) {
  const int64_t offset = begin * all.cols * ByteWidth(dtype);
  const auto* first = static_cast<const std::byte*>(all.in[0]);
  const auto* second = static_cast<const std::byte*>(all.in[1]);
  return {{first + offset, second == nullptr ? nullptr : second + offset},
          static_cast<std::byte*>(all.out) + offset,
          end - begin,
          all.cols};
}

void RunRows(DType dtype, Operation operation, const CpuRows& rows) {
  switch (dtype) {
    case DType::kFloat32:
      return RunFloat32(operation, rows);
    case DType::kBFloat16:
      return RunBFloat16(operation, rows);
    case DType::kFloat16:
      return RunFloat16(operation, rows);
    case DType::kFloat64:
      return RunFloat64(operation, rows);
  }
}

void RunAttentionRows(DType dtype, Operation operation, const CpuRows& all,
                      const MaskedRows& attention, int64_t begin, int64_t end) {
  switch (dtype) {
    case DType::kFloat32:
      return RunAttentionFloat32(operation, all, attention, begin, end);
    case DType::kBFloat16:
      return RunAttentionBFloat16(operation, all, attention, begin, end);
    case DType::kFloat16:
      return RunAttentionFloat16(operation, all, attention, begin, end);
    case DType::kFloat64:
      return RunAttentionFloat64(operation, all, attention, begin, end);
  }
}

}  // namespace jaxkernels
