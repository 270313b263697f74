#include "core/function_attributes.h"

#include <map>
#include <mutex>
#include <utility>

namespace jaxkernels {
namespace {

// Caches one value per device and function. Failures are returned and not cached.
class OncePerFunction {
 public:
  // Calls `find(device, &value)` for the current device, unless it has succeeded before.
  template <typename Find>
  cudaError_t Get(const void* function, Find find, int* value) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto key = std::make_pair(device, function);
    if (const auto known = values_.find(key); known != values_.end()) {
      *value = known->second;
      return cudaSuccess;
    }
    const cudaError_t error = find(device, value);
    if (error == cudaSuccess) values_.emplace(key, *value);
    return error;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, int> values_;
};

// One cache per attribute. It is never destroyed: threads may launch while the process exits.
template <cudaFuncAttribute kAttribute, typename Find>
cudaError_t SetOnce(const void* function, Find find) {
  static auto* const set = new OncePerFunction;
  int value = 0;
  const auto find_and_set = [&](int device, int* found) {
    const cudaError_t error = find(device, found);
    return error == cudaSuccess ? cudaFuncSetAttribute(function, kAttribute, *found) : error;
  };
  return set->Get(function, find_and_set, &value);
}

}  // namespace

cudaError_t AllowAllSharedMemory(const void* function) {
  return SetOnce<cudaFuncAttributeMaxDynamicSharedMemorySize>(
      function, [=](int device, int* bytes) {
        cudaError_t error =
            cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        cudaFuncAttributes attributes;
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, function);
        if (error == cudaSuccess) *bytes -= static_cast<int>(attributes.sharedSizeBytes);
        return error;
      });
}

cudaError_t PreferSharedMemory(const void* function) {
  return SetOnce<cudaFuncAttributePreferredSharedMemoryCarveout>(function, [](int, int* percent) {
    *percent = cudaSharedmemCarveoutMaxShared;
    return cudaSuccess;
  });
}

cudaError_t AllowLargeClusters(const void* function) {
  return SetOnce<cudaFuncAttributeNonPortableClusterSizeAllowed>(function, [](int, int* allowed) {
    *allowed = 1;
    return cudaSuccess;
  });
}

cudaError_t FindCodeVersion(const void* function, int* version) {
  static auto* const known = new OncePerFunction;
  const auto ask = [=](int, int* found) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, function);
    if (error == cudaSuccess) *found = attributes.ptxVersion;
    return error;
  };
  return known->Get(function, ask, version);
}

}  // namespace jaxkernels
