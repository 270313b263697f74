#include "rows/cpu/run_operation.h"

namespace jaxkernels {

template void RunRowsOf<Half>(const RowCall&, const RowRange&);

}  // namespace jaxkernels
