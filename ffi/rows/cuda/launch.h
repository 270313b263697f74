// plan -> kernel. The only door between host code and the kernels.
#ifndef JAXKERNELS_ROWS_CUDA_LAUNCH_H_
#define JAXKERNELS_ROWS_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "rows/call.h"
#include "rows/plan.h"

namespace jaxkernels {

// Starts the kernel of `plan` on `stream` and returns the launch's own status; nothing is
// synchronised or allocated.
cudaError_t LaunchSoftmax(const RowCall& call, const SoftmaxPlan& plan, cudaStream_t stream);

// Starts kernel `function`, whose arguments are `kernel_args`, as `plan` says.
cudaError_t StartKernel(const void* function, const SoftmaxPlan& plan, void** kernel_args,
                        cudaStream_t stream);

// The same for one storage type. Each is compiled in a file of its own, launch_<dtype>.cu, so that
// they compile side by side.
template <DType kDType>
cudaError_t LaunchSoftmaxOf(const RowCall& call, const SoftmaxPlan& plan, cudaStream_t stream);

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_LAUNCH_H_
