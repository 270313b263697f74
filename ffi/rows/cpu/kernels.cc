#include "rows/cpu/kernels.h"

namespace jaxkernels {

void RunRows(const RowCall& call, int64_t begin, int64_t end) {
  switch (call.dtype) {
    case DType::kFloat32:
      return RunRowsOf<DType::kFloat32>(call, begin, end);
    case DType::kBFloat16:
      return RunRowsOf<DType::kBFloat16>(call, begin, end);
    case DType::kFloat16:
      return RunRowsOf<DType::kFloat16>(call, begin, end);
    case DType::kFloat64:
      return RunRowsOf<DType::kFloat64>(call, begin, end);
  }
}

}  // namespace jaxkernels
