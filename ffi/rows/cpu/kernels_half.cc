#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template <>
void RunRowsOf<Half>(const RowCall& call, const RowRange& range) {
  RunOperation<Half>(call, range);
}

}  // namespace jaxkernels
