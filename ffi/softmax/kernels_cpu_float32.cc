#include "softmax/run_operation_cpu.h"

namespace jaxkernels {

template <>
JK_MULTIVERSION void RunRowsOf<DType::kFloat32>(const CpuCall& call, int64_t begin, int64_t end) {
  RunOperation<float>(call, begin, end);
}

}  // namespace jaxkernels
