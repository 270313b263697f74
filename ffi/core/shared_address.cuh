// Shared memory addresses in the form that PTX instructions take.
#pragma once

#include <cstdint>

namespace jaxkernels {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace jaxkernels
