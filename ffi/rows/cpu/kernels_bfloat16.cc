#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<DType::kBFloat16>(const RowCall& call, const RowRange& range) {
  RunOperation<BFloat16>(call, range);
}

}  // namespace jaxkernels
