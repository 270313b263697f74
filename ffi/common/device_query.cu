#include <cuda_runtime_api.h>

#include <mutex>
#include <thread>
#include <vector>

#include "common/device_query.h"

namespace jaxkernels {
namespace {

__global__ void Probe() {}

// The most blocks of a cluster that can run on the current device at once, if each fills an SM. One
// where the code that is loaded was compiled for a GPU without clusters: it runs on a newer one
// too, and there takes every block for a cluster of its own.
int MostClusterBlocks(int smem_per_block) {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, Probe) != cudaSuccess || attributes.ptxVersion < 90)
    return 1;
  cudaFuncSetAttribute(Probe, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaFuncSetAttribute(Probe, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_per_block);
  for (unsigned blocks = 16; blocks > 1; blocks /= 2) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(1024);
    config.dynamicSmemBytes = smem_per_block;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, Probe, &config) == cudaSuccess && clusters > 0) {
      return static_cast<int>(blocks);
    }
  }
  return 1;
}

// What CUDA says of clusters is about the current device, and is asked in a thread that has no
// other: to go back to the device that was current before would make that one ready for use, too.
int MostClusterBlocksOf(int ordinal, int smem_per_block) {
  int blocks = 1;
  std::thread([&] {
    if (cudaSetDevice(ordinal) == cudaSuccess) blocks = MostClusterBlocks(smem_per_block);
  }).join();
  return blocks;
}

struct Device {
  DeviceLimits limits;
  std::once_flag
      asked_for_clusters;  // when it is needed, since that makes the device ready for use
};

std::vector<Device> QueryAll() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;  // no driver is no GPU
  std::vector<Device> all(count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, ordinal) != cudaSuccess) continue;  // there is none, then
    all[ordinal].limits = {device.name,
                           device.multiProcessorCount,
                           static_cast<int>(device.sharedMemPerBlockOptin),
                           static_cast<int>(device.sharedMemPerMultiprocessor),
                           device.maxThreadsPerMultiProcessor,
                           device.maxBlocksPerMultiProcessor,
                           device.regsPerMultiprocessor,
                           10 * device.major + device.minor};
  }
  return all;
}

}  // namespace

const DeviceLimits* LimitsOfDevice(int ordinal) {
  static std::vector<Device> all = QueryAll();
  if (ordinal < 0 || ordinal >= static_cast<int>(all.size())) return nullptr;
  Device& device = all[ordinal];
  if (device.limits.sm_count == 0) return nullptr;
  std::call_once(device.asked_for_clusters, [&] {
    device.limits.cluster_blocks = MostClusterBlocksOf(ordinal, device.limits.smem_per_block);
  });
  return &device.limits;
}

}  // namespace jaxkernels
