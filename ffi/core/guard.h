// Stops exceptions at the boundary between C++ and XLA's C interface.
//
// Owns: the mapping from exceptions to ffi::Error. XLA catches exceptions that leave a handler, but
// reports them as unknown errors. Nobody catches an exception that leaves a task of XLA's thread
// pool: the process ends. Must not know: any handler.
#pragma once

#include <exception>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// ThrownBy calls body() and returns success or the error that it threw.
template <typename Body>
xla::ffi::Error ThrownBy(Body&& body) noexcept {
  using xla::ffi::Error;
  try {
    try {
      body();
      return Error::Success();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& exception) {
      return Error::Internal(exception.what());
    } catch (...) {
      return Error::Internal("an exception that is no std::exception");
    }
  } catch (...) {  // no memory, maybe for the text
    // A text this short fits std::string's inline buffer, so it is never allocated, even when
    // copied.
    return Error(xla::ffi::ErrorCode::kResourceExhausted, "out of memory");
  }
}

// Wraps a handler so that it returns exceptions as errors. It covers the whole call, including
// XLA's decoding of operands and encoding of results.
template <XLA_FFI_Handler* kHandler>
XLA_FFI_Error* Guarded(XLA_FFI_CallFrame* frame) noexcept {
  XLA_FFI_Error* returned = nullptr;
  const xla::ffi::Error thrown = ThrownBy([&] { returned = kHandler(frame); });
  return thrown.success() ? returned : xla::ffi::internal::CreateError(frame->api, thrown);
}

}  // namespace jaxkernels
