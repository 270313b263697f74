// Queries the limits of this machine's GPUs.
#pragma once

#include <string>

#include "core/device_limits.h"

namespace jaxkernels {

// The limits, which live as long as the process, or an error text.
struct DeviceLimitsResult {
  const DeviceLimits* limits = nullptr;
  std::string error;
};

// Returns the limits of GPU `ordinal`. They are queried once per process; after a failure the next
// call queries again. The first call for a GPU initialises it and loads code.
DeviceLimitsResult LimitsOfDevice(int ordinal);

}  // namespace jaxkernels
