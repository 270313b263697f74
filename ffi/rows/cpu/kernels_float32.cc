#include "rows/cpu/run_operation.h"

namespace jaxkernels {
namespace {

JK_MULTIVERSION_OF_ALL void Run(const RowCall& call, const RowRange& range) {
  RunOperation<float>(call, range);
}

}  // namespace

template <>
void RunRowsOf<DType::kFloat32>(const RowCall& call, const RowRange& range) {
  Run(call, range);
}

}  // namespace jaxkernels
