#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<double>(const RowCall& call, const RowRange& range) {
  RunOperation<double>(call, range);
}

}  // namespace jaxkernels
