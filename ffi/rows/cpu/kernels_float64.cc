#include "rows/cpu/run_operation.h"

namespace jaxkernels {
namespace {

JK_MULTIVERSION void Run(const RowCall& call, int64_t begin, int64_t end) {
  RunOperation<double>(call, begin, end);
}

}  // namespace

template <>
void RunRowsOf<DType::kFloat64>(const RowCall& call, int64_t begin, int64_t end) {
  Run(call, begin, end);
}

}  // namespace jaxkernels
