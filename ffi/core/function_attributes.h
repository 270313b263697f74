// What a kernel needs to be allowed or to be given before its first launch on a device.
//
// Owns: attributes of functions, which all host threads of a process share. Each is set once for a
// device and a function, to a value that depends on no launch, so that no thread takes away what
// another has just asked for. Must not know: plans.
#ifndef JAXKERNELS_CORE_FUNCTION_ATTRIBUTES_H_
#define JAXKERNELS_CORE_FUNCTION_ATTRIBUTES_H_

#include <cuda_runtime_api.h>

namespace jaxkernels {

// All of these are about the current device, and may be called by any thread before every launch: a
// call that is not the first costs a look-up. A failure is returned and not remembered.

// Launches of `function` may ask for as much dynamic shared memory as the device grants a block (48
// KiB otherwise).
cudaError_t AllowAllSharedMemory(const void* function);

// Shared memory, not the L1 cache, gets the largest share of what they divide between them.
cudaError_t PreferSharedMemory(const void* function);

// Launches of `function` may ask for clusters of more than 8 blocks.
cudaError_t AllowLargeClusters(const void* function);

// The architecture that the loaded code of `function` was compiled for: 90 for compute capability
// 9.0. Asked once for each function and device.
cudaError_t FindCodeVersion(const void* function, int* version);

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_FUNCTION_ATTRIBUTES_H_
