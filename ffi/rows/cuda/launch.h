// Launches the kernel of a plan: the only interface between host code and the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "rows/call.h"
#include "rows/plan.h"

namespace jaxkernels {

// Launches the kernel of `plan` on `stream` and returns the launch status. Does not synchronise or
// allocate.
cudaError_t LaunchRows(const RowCall& call, const RowPlan& plan, cudaStream_t stream);

// Launches kernel `function` with arguments `kernel_args` and the configuration of `plan`.
cudaError_t StartKernel(const void* function, const RowPlan& plan, void** kernel_args,
                        cudaStream_t stream);

// As LaunchRows, for one storage type. Each is compiled in its own file, launch_<dtype>.cu, so
// that they compile in parallel.
template <DType kDType>
cudaError_t LaunchRowsOf(const RowCall& call, const RowPlan& plan, cudaStream_t stream);

}  // namespace jaxkernels
