// The boundary between C++ and XLA's C interface: no exception passes it.
//
// Owns: exception -> ffi::Error. XLA itself catches what leaves a handler, as an error of unknown
// kind; nobody catches what leaves a task of its thread pool, and the process ends. Must not know:
// any handler.
#ifndef JAXKERNELS_CORE_GUARD_H_
#define JAXKERNELS_CORE_GUARD_H_

#include <exception>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// The exception that is being handled.
inline xla::ffi::Error CurrentError() noexcept {
  using xla::ffi::Error;
  // So short a text allocates nothing, be it copied.
  const auto out_of_memory = [] {
    return Error(xla::ffi::ErrorCode::kResourceExhausted, "out of memory");
  };
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return out_of_memory();
    } catch (const std::exception& exception) {
      return Error::Internal(exception.what());
    } catch (...) {
      return Error::Internal("an exception that is no std::exception");
    }
  } catch (...) {
    return out_of_memory();  // for the text
  }
}

// Calls body(); success, or what it threw.
template <typename Body>
xla::ffi::Error ThrownBy(Body&& body) noexcept {
  try {
    body();
    return xla::ffi::Error::Success();
  } catch (...) {
    return CurrentError();
  }
}

// A handler that returns what it would throw. It guards the whole call, XLA's decoding of operands
// and encoding of results too.
template <XLA_FFI_Handler* kHandler>
XLA_FFI_Error* Guarded(XLA_FFI_CallFrame* frame) noexcept {
  XLA_FFI_Error* returned = nullptr;
  const xla::ffi::Error thrown = ThrownBy([&] { returned = kHandler(frame); });
  return thrown.success() ? returned : xla::ffi::internal::CreateError(frame->api, thrown);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_GUARD_H_
