// plan -> kernel. The only door between host code and the kernels.
#ifndef JAXKERNELS_SOFTMAX_LAUNCH_H_
#define JAXKERNELS_SOFTMAX_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "softmax/masked_rows.h"
#include "softmax/plan.h"

namespace jaxkernels {

// Aligned to their elements, and of shape (rows, cols), but for a bias that broadcasts.
struct SoftmaxArrays {
  const void* in[2];  // x; or scores and their bias; or y and a cotangent
  void* out;
  int64_t rows, cols;
  MaskedRows attention = {};   // of the operations on attention scores
  void* statistics = nullptr;  // of the parts: maximum and sum of every row, in the compute type
};

// Starts the kernel of `plan` on `stream` and returns the launch's own status; nothing is
// synchronised or allocated.
cudaError_t LaunchSoftmax(DType dtype, Operation operation, const SoftmaxPlan& plan,
                          const SoftmaxArrays& arrays, cudaStream_t stream);

// Starts kernel `function`, whose arguments are `kernel_args`, as `plan` says.
cudaError_t StartKernel(const void* function, const SoftmaxPlan& plan, void** kernel_args,
                        cudaStream_t stream);

// The same for one storage type. Each is compiled in a file of its own, launch_<dtype>.cu, so that
// they compile side by side.
template <DType kDType>
cudaError_t LaunchSoftmaxOf(Operation operation, const SoftmaxPlan& plan,
                            const SoftmaxArrays& arrays, cudaStream_t stream);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_LAUNCH_H_
