#pragma once
#include <type_traits>

#include "simulator.h"

namespace jaxkernels {

struct LaunchShape {
  int64_t blocks;
  int threads;
  int smem_bytes = 0;
};

// Blocks run one after the other. Shared memory is NaN at first, to show reads before a write.
template <typename... Args>
cudaError_t LaunchKernel(void (*kernel)(Args...), const LaunchShape& shape, cudaStream_t,
                         std::type_identity_t<Args>... args) {
  for (int64_t i = 0; i < shape.blocks; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    gridDim.x = static_cast<unsigned>(shape.blocks);
    std::memset(smem, 0xff, sizeof smem);
    simulator::body = [&] { kernel(args...); };
    simulator::RunBlock(shape.threads);
  }
  return cudaSuccess;
}

}  // namespace jaxkernels
