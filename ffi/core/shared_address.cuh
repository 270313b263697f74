// Shared memory addresses in the form that PTX instructions take.
#ifndef JAXKERNELS_CORE_SHARED_ADDRESS_CUH_
#define JAXKERNELS_CORE_SHARED_ADDRESS_CUH_

#include <cstdint>

namespace jaxkernels {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_SHARED_ADDRESS_CUH_
