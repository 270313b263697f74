// The limits of the GPUs of this machine.
#ifndef JAXKERNELS_CORE_DEVICE_QUERY_H_
#define JAXKERNELS_CORE_DEVICE_QUERY_H_

#include <string>

#include "core/device_limits.h"

namespace jaxkernels {

// Limits, which live as long as the process, or why they could not be had.
struct DeviceLimitsResult {
  const DeviceLimits* limits = nullptr;
  std::string error;
};

// The limits of GPU `ordinal`. They are read once per process; a failure is not kept, so that the
// next call asks again. The first call for a GPU makes it ready for use and loads code.
DeviceLimitsResult LimitsOfDevice(int ordinal);

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_DEVICE_QUERY_H_
