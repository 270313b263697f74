#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<float>(const RowCall& call, const RowRange& range) {
  RunOperation<float>(call, range);
}

}  // namespace jaxkernels
