// Exports an extension module's FFI targets to Python.
//
// Owns: the dict of capsules by target name that Python registers. Must not know: which targets
// exist.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <utility>

#include "core/guard.h"
#include "xla/ffi/api/c_api.h"

namespace jaxkernels {

// The name of a custom call target and its handler. Only Of makes one, so that every handler is
// guarded.
struct Target {
  template <XLA_FFI_Handler* kHandler>
  static Target Of(const char* name) {
    return Target(name, Guarded<kHandler>);
  }

  const char* const name;
  XLA_FFI_Handler* const handler;

 private:
  Target(const char* name, XLA_FFI_Handler* handler) : name(name), handler(handler) {}
};

// The version of the XLA FFI headers that the module is compiled with. Python refuses a module
// built for a newer jaxlib than the running one.
inline std::pair<int, int> FfiApiVersion() { return {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR}; }

inline nanobind::dict RegistrationsOf(std::initializer_list<Target> targets) {
  nanobind::dict capsules;
  for (const Target& target : targets) {
    capsules[target.name] = nanobind::capsule(reinterpret_cast<void*>(target.handler));
  }
  return capsules;
}

}  // namespace jaxkernels
