#pragma once
#include "simulator.h"

namespace jaxkernels {
// An address that is no multiple of 1024.
inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - smem) + 16;
}
inline char* PointerOf(uint32_t address) { return smem + address - 16; }
}  // namespace jaxkernels
