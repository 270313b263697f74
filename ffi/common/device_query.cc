#include "common/device_query.h"

#include <cuda_runtime_api.h>

#include <vector>

namespace jaxkernels {
namespace {

std::vector<DeviceLimits> QueryAll() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;  // no driver is no GPU
  std::vector<DeviceLimits> all;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, ordinal) != cudaSuccess) break;
    all.push_back(
        {device.name, device.multiProcessorCount, static_cast<int>(device.sharedMemPerBlockOptin),
         static_cast<int>(device.sharedMemPerMultiprocessor), device.maxThreadsPerMultiProcessor,
         device.maxBlocksPerMultiProcessor, device.regsPerMultiprocessor,
         10 * device.major + device.minor,
         MostClusterBlocks(10 * device.major + device.minor, device.multiProcessorCount)});
  }
  return all;
}

}  // namespace

const DeviceLimits* LimitsOfDevice(int ordinal) {
  static const std::vector<DeviceLimits> all = QueryAll();
  return ordinal >= 0 && ordinal < static_cast<int>(all.size()) ? &all[ordinal] : nullptr;
}

}  // namespace jaxkernels
