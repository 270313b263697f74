// Kernels for x86-64 machines below x86-64-v3: correct, but not tuned.
#include "rows/cpu/run_operation.h"

namespace jaxkernels {

void RunRowsOfBaseline(const RowCall& call, const RowRange& range) {
  switch (call.dtype) {
    case DType::kFloat32:
      return RunOperation<float>(call, range);
    case DType::kBFloat16:
    case DType::kFloat16:
      return RunOperation<Half>(call, range);
    case DType::kFloat64:
      return RunOperation<double>(call, range);
  }
}

}  // namespace jaxkernels
