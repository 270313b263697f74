#include "rows/cpu/kernels.h"

namespace jaxkernels {

bool MayShareRows(const RowCall& call) {
  const bool is_open = !HidesElements(call.operation) || call.masking.IsOpen();
  return SegmentCount(call.arrays.cols) > 1 && call.part == Part::kWhole && is_open;
}

int64_t BuffersOf(const RowCall& call) {
  const bool is_half = IsHalf(call.dtype), caps = call.scales.count > 1;
  const int64_t inputs = is_half ? InputsOf(call.operation) : TransformsLogits(call) ? 1 : 0;
  return inputs + (is_half && caps ? 1 : 0);
}

int64_t RoomToShare(const RowCall& call) {
  const int64_t of_scores = FindsMax(call.operation) ? 2 : 3;
  const int64_t arrays = HidesElements(call.operation) ? of_scores : BuffersOf(call);
  const int64_t width = std::max<int64_t>(ByteWidth(call.dtype), sizeof(float));
  return arrays * call.arrays.rows * call.arrays.cols * width;
}

RowStep FirstStep(Operation operation, DType dtype) {
  const OperationTraits& traits = TraitsOf(operation);
  if (traits.sums == 0) return RowStep::kResults;
  return UsesMax(traits, dtype) ? RowStep::kMax : RowStep::kSums;
}

void RunRows(const RowCall& call, const RowRange& range) {
#ifdef JK_X86_LEVELS
  if (!__builtin_cpu_supports("x86-64-v3")) return RunRowsOfBaseline(call, range);
#endif
  switch (call.dtype) {
    case DType::kFloat32:
      return RunRowsOf<float>(call, range);
    case DType::kBFloat16:
    case DType::kFloat16:
      return RunRowsOf<Half>(call, range);
    case DType::kFloat64:
      return RunRowsOf<double>(call, range);
  }
}

}  // namespace jaxkernels
