// The limits of the GPUs of this machine.
#ifndef JAXKERNELS_COMMON_DEVICE_QUERY_H_
#define JAXKERNELS_COMMON_DEVICE_QUERY_H_

#include "common/device_limits.h"

namespace jaxkernels {

// The limits of GPU `ordinal`, read once per process; nullptr when there is no such GPU. The first
// call for a GPU makes it ready for use and loads code.
const DeviceLimits* LimitsOfDevice(int ordinal);

}  // namespace jaxkernels

#endif  // JAXKERNELS_COMMON_DEVICE_QUERY_H_
