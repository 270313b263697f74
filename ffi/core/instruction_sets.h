// The versions of a CPU kernel for several instruction sets, and the choice among them.
#pragma once

#include "core/host_device.h"

// As JK_INLINE, for a lambda; put it after the parameter list.
#define JK_INLINE_LAMBDA __attribute__((always_inline))

namespace jaxkernels {

// The versions of a JK_INLINE function, one per instruction set. Keep these functions small: in
// large ones the compiler keeps too little of a loop in registers and takes twice as long.
// f32 softmax of 47 columns, ns per element: all operations in one 0.62, short rows in one 0.50
template <auto kBody>
struct Versions;
template <typename... Args, void (*kBody)(Args...)>
struct Versions<kBody> {
#ifdef JK_X86_LEVELS
  __attribute__((target("arch=x86-64-v4"), noinline)) static void V4(Args... args) {
    kBody(args...);
  }
  __attribute__((target("arch=x86-64-v3"), noinline)) static void V3(Args... args) {
    kBody(args...);
  }
#else
  __attribute__((noinline)) static void Plain(Args... args) { kBody(args...); }
#endif
};

// Calls the version of a JK_INLINE function for this machine's instruction set. With JK_X86_LEVELS
// (cmake/JaxKernelsSimd.cmake) that is at least x86-64-v3, which RunRows checks.
template <auto kBody, typename... Args>
JK_INLINE void OnThisMachine(const Args&... args) {
#ifdef JK_X86_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) return Versions<kBody>::V4(args...);
  Versions<kBody>::V3(args...);
#else
  Versions<kBody>::Plain(args...);
#endif
}

}  // namespace jaxkernels
