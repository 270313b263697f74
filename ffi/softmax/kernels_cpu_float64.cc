#include "softmax/run_operation_cpu.h"

namespace jaxkernels {

template <>
JK_MULTIVERSION void RunRowsOf<DType::kFloat64>(const CpuCall& call, int64_t begin, int64_t end) {
  RunOperation<double>(call, begin, end);
}

}  // namespace jaxkernels
