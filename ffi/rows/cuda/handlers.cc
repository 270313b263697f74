// FFI handlers of the row operations on CUDA.
//
// Owns: the path from an XLA call to a launch. Must not know: the checks of a call (read_call.h),
// how a plan is chosen, how a kernel works. Handlers neither allocate nor synchronise, so that they
// can be captured into CUDA graphs.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "core/device_query.h"
#include "rows/cuda/launch.h"
#include "rows/mask_rules.h"
#include "rows/plan.h"
#include "rows/read_call.h"
#include "rows/register_rules.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

ffi::Error Explain(Operation operation, const std::string& problem) {
  return ffi::Error::InvalidArgument(std::string(NameOf(operation)) + ": " + problem);
}

ffi::Error Unavailable(Operation operation, const std::string& problem) {
  return ffi::Error(ffi::ErrorCode::kUnavailable, std::string(NameOf(operation)) + ": " + problem);
}

RowProblem ProblemOf(const RowCall& call) {
  RowProblem problem;
  problem.rows = call.arrays.rows;
  problem.cols = call.arrays.cols;
  problem.dtype = call.dtype;
  problem.operation = call.operation;
  problem.tier = call.tier;
  problem.part = call.part;
  problem.narrows = call.result_dtype != call.dtype;
  problem.all_sums = call.all_sums;
  problem.masks_logits = TraitsOf(call.operation).TakesLabel() && call.masking.mask != nullptr;
  return problem;
}

// Finds the alignment of a call's arrays relative to packs: XLA passes slices of buffers in place.
// Returns false if an array is not aligned to its elements.
bool FindAlignment(const RowCall& call, RowProblem* problem) {
  const auto place = [](const void* array, int bytes) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(array) % bytes);
  };
  const int width = ByteWidth(call.dtype);
  const RowArrays& arrays = call.arrays;
  const bool has_out = arrays.out != nullptr;
  const int leading_width = has_out ? ByteWidth(call.result_dtype) : width;
  const int begin = place(has_out ? arrays.out : arrays.in[0], PackOf(call.dtype) * leading_width);
  problem->offset = begin / leading_width;
  bool at_elements = begin % leading_width == 0;
  problem->broadcast_aligned = place(call.masking.mask, MaskAlignment(call.dtype)) == 0 &&
                               place(call.column.data, kPackBytes) == 0;
  const int compute_width = ComputeWidth(call.dtype);
  at_elements &= place(call.column.data, call.column.wide ? compute_width : width) == 0;
  for (const RowScalars& scalars : {call.scalars_in[0], call.scalars_in[1], call.scalars_out}) {
    at_elements &= place(scalars.data, scalars.wide ? compute_width : width) == 0;
  }
  at_elements &= place(call.labels, sizeof(int32_t)) == 0;
  at_elements &= place(call.scales.data, compute_width) == 0;
  at_elements &= place(call.statistics, compute_width) == 0;
  for (int i = 0; i < InputsOf(call.operation); ++i) {
    const int at = place(arrays.in[i], kPackBytes);
    at_elements &= at % width == 0;
    if (i == 0 || SharesRows(call.operation)) {
      problem->shifted |= at != problem->offset * width;
    } else {
      problem->broadcast_aligned &= at == 0;
    }
  }
  return at_elements;
}

ffi::Error Run(cudaStream_t stream, int32_t ordinal, RowCall& call) {
  if (call.masking.mask != nullptr && call.scales.count > 1) {
    return Explain(call.operation, "no CUDA kernel takes both a mask and a soft cap");
  }
  if (call.arrays.rows == 0 || call.arrays.cols == 0) return ffi::Error::Success();
  RowProblem problem = ProblemOf(call);
  if (!FindAlignment(call, &problem)) {
    return Explain(call.operation, "buffers must be aligned to their elements");
  }
  const DeviceLimitsResult found = LimitsOfDevice(ordinal);
  if (found.limits == nullptr) return Unavailable(call.operation, found.error);
  const RowPlanResult planned = PlanRows(problem, *found.limits);
  if (!planned.error.empty()) return Explain(call.operation, planned.error);
  if (HidesElements(call.operation) && call.part == Part::kWhole && call.masking.mask != nullptr) {
    const int64_t row_bytes = 2 * problem.cols * ByteWidth(problem.dtype);
    call.masking.order =
        OrderOfRows(call.masking.mask_rows, problem.rows, row_bytes, ArchOf(*found.limits));
  }

  const cudaError_t status = LaunchRows(call, planned.plan, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(NameOf(call.operation)) + ": the launch of " +
                              TextOf(planned.plan) + " failed: " + cudaGetErrorString(status));
}

// A handler that reads its call with kRead.
template <auto kRead>
constexpr auto kHandler = [](cudaStream_t stream, int32_t ordinal, auto... arguments) {
  RowCall call;
  ffi::Error error = kRead(arguments..., &call);
  return error.failure() ? error : Run(stream, ordinal, call);
};

auto OnStream() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Ctx<ffi::DeviceOrdinal>();
}

}  // namespace

#define JK_CUDA_HANDLER(symbol, function, binding) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding, {ffi::Traits::kCmdBufferCompatible})

JK_CUDA_HANDLER(JaxkernelsRowsCuda, kHandler<ReadWhole>, BindWhole(OnStream()));
JK_CUDA_HANDLER(JaxkernelsRowStatisticsCuda, kHandler<ReadStatistics>, BindStatistics(OnStream()));
JK_CUDA_HANDLER(JaxkernelsRowFinishCuda, kHandler<ReadFinish>, BindFinish(OnStream()));

#undef JK_CUDA_HANDLER

}  // namespace jaxkernels
