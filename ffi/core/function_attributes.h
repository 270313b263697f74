// CUDA function attributes that a kernel needs before its first launch on a device.
//
// Owns: function attributes, which all host threads of a process share. Each is set once per device
// and function, to a value that does not depend on the launch, so that no thread undoes another's
// setting. Must not know: plans.
#ifndef JAXKERNELS_CORE_FUNCTION_ATTRIBUTES_H_
#define JAXKERNELS_CORE_FUNCTION_ATTRIBUTES_H_

#include <cuda_runtime_api.h>

namespace jaxkernels {

// All functions here act on the current device. Any thread may call them before every launch: later
// calls cost one map look-up. Failures are returned and not cached.

// Raises the dynamic shared memory limit of `function` from 48 KiB to the device's maximum per
// block.
cudaError_t AllowAllSharedMemory(const void* function);

// Sets the carveout of `function` to maximum shared memory and minimum L1 cache.
cudaError_t PreferSharedMemory(const void* function);

// Allows launches of `function` with clusters of more than 8 blocks.
cudaError_t AllowLargeClusters(const void* function);

// Finds the architecture that the loaded code of `function` was compiled for: 90 for compute
// capability 9.0. Queried once per function and device.
cudaError_t FindCodeVersion(const void* function, int* version);

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_FUNCTION_ATTRIBUTES_H_
