#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<DType::kFloat16>(const RowCall& call, const RowRange& range) {
  RunOperation<Float16>(call, range);
}

}  // namespace jaxkernels
