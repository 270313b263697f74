// The version of the XLA FFI headers that a module is compiled with.
//
// Owns: how Python reads that version. Python refuses a module built for a newer jaxlib than the
// running one.
#ifndef JAXKERNELS_CORE_API_VERSION_H_
#define JAXKERNELS_CORE_API_VERSION_H_

#include <utility>

#include "xla/ffi/api/c_api.h"

namespace jaxkernels {

inline std::pair<int, int> FfiApiVersion() { return {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR}; }

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_API_VERSION_H_
