// The extension module jaxkernels._cuda: CUDA targets, and the limits of the GPUs of this machine.
//
// Owns: the Python interface. Must not know: what a target does. The module imports on a machine
// without a GPU or a driver.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "core/device_query.h"
#include "core/registrations.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

namespace jaxkernels {

XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsRowsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsRowStatisticsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsRowFinishCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsSgemmCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsAttentionCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsAttentionBackwardCuda);

namespace {

nb::dict Registrations() {
  return RegistrationsOf({
      Target::Of<JaxkernelsRowsCuda>("jaxkernels_rows"),
      Target::Of<JaxkernelsRowStatisticsCuda>("jaxkernels_row_statistics"),
      Target::Of<JaxkernelsRowFinishCuda>("jaxkernels_row_finish"),
      Target::Of<JaxkernelsSgemmCuda>("jaxkernels_sgemm"),
      Target::Of<JaxkernelsAttentionCuda>("jaxkernels_attention"),
      Target::Of<JaxkernelsAttentionBackwardCuda>("jaxkernels_attention_backward"),
  });
}

nb::dict Limits(int ordinal) {
  const auto [limits, error] = LimitsOfDevice(ordinal);
  if (limits == nullptr) throw std::runtime_error(error);
  nb::dict fields;
  const auto add = [&](const auto& field) { fields[field.name] = field.value; };
  std::apply([&](const auto&... all) { (add(all), ...); }, DeviceLimits::FieldsOf(*limits));
  return fields;
}

}  // namespace

NB_MODULE(_cuda, module) {
  module.doc() = "CUDA kernels of jaxkernels.";
  module.def("registrations", &Registrations, "FFI target name -> capsule of its handler.");
  module.def("ffi_api_version", &FfiApiVersion,
             "(major, minor) of the XLA FFI headers that this module was compiled with.");
  module.def("device_limits", &Limits, nb::arg("ordinal"),
             "The fields of DeviceLimits for a GPU of this machine.");
  module.def(
      "architectures", [] { return std::string(JK_CUDA_ARCHITECTURES); },
      "The GPU architectures that the kernels are compiled for, in CMake's spelling.");
}

}  // namespace jaxkernels
