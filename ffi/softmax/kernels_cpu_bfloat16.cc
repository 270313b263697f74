#include "softmax/run_operation_cpu.h"

namespace jaxkernels {

template <>
JK_MULTIVERSION void RunRowsOf<DType::kBFloat16>(const CpuCall& call, int64_t begin, int64_t end) {
  RunOperation<BFloat16>(call, begin, end);
}

}  // namespace jaxkernels
