// The extension module jaxkernels._cpu: CPU targets, and the plans of the GPU kernels.
//
// Owns: the Python interface. Must not know: what a target does.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include "core/registrations.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

namespace jaxkernels {

XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsRowsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsRowStatisticsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxkernelsRowFinishCpu);

void BindRowPlan(nb::module_& module);
void BindSgemmPlan(nb::module_& module);
void BindAttentionPlan(nb::module_& module);

namespace {

nb::dict Registrations() {
  return RegistrationsOf({
      Target::Of<JaxkernelsRowsCpu>("jaxkernels_rows"),
      Target::Of<JaxkernelsRowStatisticsCpu>("jaxkernels_row_statistics"),
      Target::Of<JaxkernelsRowFinishCpu>("jaxkernels_row_finish"),
  });
}

}  // namespace

NB_MODULE(_cpu, module) {
  module.doc() = "CPU kernels of jaxkernels, and the launch plans of its GPU kernels.";
  module.def("registrations", &Registrations, "FFI target name -> capsule of its handler.");
  module.def("ffi_api_version", &FfiApiVersion,
             "(major, minor) of the XLA FFI headers that this module was compiled with.");
  module.attr("WHY_NO_CUDA") = JK_WHY_NO_CUDA;  // empty if the CUDA module was built
  BindRowPlan(module);
  BindSgemmPlan(module);
  BindAttentionPlan(module);
}

}  // namespace jaxkernels
