#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<DType::kFloat64>(const RowCall& call, const RowRange& range) {
  RunOperation<double>(call, range);
}

}  // namespace jaxkernels
