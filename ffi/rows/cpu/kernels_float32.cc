#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<DType::kFloat32>(const RowCall& call, const RowRange& range) {
  RunOperation<float>(call, range);
}

}  // namespace jaxkernels
