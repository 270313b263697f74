#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template void RunRowsOf<double>(const RowCall&, const RowRange&);

}  // namespace jaxkernels
