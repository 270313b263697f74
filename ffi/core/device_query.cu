#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <thread>

#include "core/device_query.h"

namespace jaxkernels {
namespace {

__global__ void Probe() {}

// Uses static shared memory only if compiled for sm_90a. A program has no other way to see which
// code it has loaded.
__global__ void ProbeProducts() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ volatile int mark;
  mark = 0;
#endif
}

// The maximum cluster size on the current device if each block fills an SM. It is 1 if the loaded
// code was compiled for a GPU without clusters: on a newer GPU that code treats every block as a
// cluster of its own.
cudaError_t FindMostClusterBlocks(int compiled_for, int smem_per_block, int* most) {
  *most = 1;
  if (compiled_for < 90) return cudaSuccess;
  cudaError_t error =
      cudaFuncSetAttribute(Probe, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(Probe, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_per_block);
  if (error != cudaSuccess) return error;
  for (int blocks = 16; blocks > 1; blocks /= 2) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(1024);
    config.dynamicSmemBytes = smem_per_block;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    error = cudaOccupancyMaxActiveClusters(&clusters, Probe, &config);
    // Both errors mean that the GPU has no clusters of this size.
    if (error == cudaErrorInvalidClusterSize || error == cudaErrorInvalidValue) continue;
    if (error != cudaSuccess) return error;
    if (clusters > 0) {
      *most = blocks;
      return cudaSuccess;
    }
  }
  return cudaSuccess;
}

// Queries the peak bandwidth of the memory, which moves data twice a cycle, and the maximum clock.
// A virtual GPU may not report them, and then keeps the defaults.
void QueryRates(int ordinal, DeviceLimits* limits) {
  int clock_khz = 0, memory_khz = 0, bus_bits = 0;
  if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, ordinal) != cudaSuccess ||
      cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, ordinal) != cudaSuccess ||
      cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, ordinal) != cudaSuccess) {
    cudaGetLastError();  // clears it
    return;
  }
  const double gb_per_s = 2e-6 * memory_khz * (bus_bits / 8);
  if (clock_khz < 1000 || gb_per_s < 1) return;
  limits->clock_mhz = clock_khz / 1000;
  limits->memory_gb_per_s = static_cast<int>(gb_per_s + 0.5);
}

// Queries about code and clusters concern the current device. They run in a new thread, whose
// current device can be set freely: restoring the caller's device would initialise that device too.
cudaError_t QueryCode(int ordinal, DeviceLimits* limits) {
  cudaError_t error = cudaSuccess;
  std::thread([&] {
    error = cudaSetDevice(ordinal);
    if (error != cudaSuccess) return;
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, Probe);
    if (error != cudaSuccess) return;
    limits->compiled_for = attributes.ptxVersion;  // binaryVersion is the GPU's after a JIT
    error = FindMostClusterBlocks(limits->compiled_for, limits->smem_per_block,
                                  &limits->cluster_blocks);
    if (error != cudaSuccess) return;
    error = cudaFuncGetAttributes(&attributes, ProbeProducts);
    limits->has_wgmma = error == cudaSuccess && attributes.sharedSizeBytes > 0 &&
                        HasWgmma(limits->compute_capability, limits->compiled_for);
  }).join();
  return error;
}

cudaError_t Query(int ordinal, DeviceLimits* limits) {
  cudaDeviceProp device;
  if (const cudaError_t error = cudaGetDeviceProperties(&device, ordinal); error != cudaSuccess) {
    return error;
  }
  *limits = {device.name,
             device.multiProcessorCount,
             static_cast<int>(device.sharedMemPerBlockOptin),
             static_cast<int>(device.sharedMemPerMultiprocessor),
             device.maxThreadsPerMultiProcessor,
             device.maxBlocksPerMultiProcessor,
             device.regsPerMultiprocessor,
             10 * device.major + device.minor};
  QueryRates(ordinal, limits);
  return QueryCode(ordinal, limits);
}

DeviceLimitsResult Failure(int ordinal, const std::string& why) {
  return {nullptr, "CUDA device " + std::to_string(ordinal) + " cannot be used: " + why};
}

}  // namespace

DeviceLimitsResult LimitsOfDevice(int ordinal) {
  static std::mutex mutex;
  static auto* const known = new std::map<int, DeviceLimits>;  // std::map keeps addresses valid
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known->find(ordinal); found != known->end()) return {&found->second, ""};
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return Failure(ordinal, cudaGetErrorString(error));
  if (ordinal < 0 || ordinal >= count) {
    return Failure(ordinal, "this process sees " + std::to_string(count) + " of them");
  }
  DeviceLimits limits;
  error = Query(ordinal, &limits);
  if (error != cudaSuccess) return Failure(ordinal, cudaGetErrorString(error));
  return {&known->emplace(ordinal, limits).first->second, ""};
}

}  // namespace jaxkernels
