#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template void RunRowsOf<float>(const RowCall&, const RowRange&);

}  // namespace jaxkernels
