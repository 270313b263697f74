// All-reductions within a lane group and within a block.
//
// Owns: how partial results meet. Must not know: what is reduced.
// cub::BlockReduce is not used here: it needs the block size as a template parameter (four times as
// many kernels) and leaves the result in one thread, so that every all-reduction would cost a
// second barrier.
#ifndef JAXKERNELS_CORE_REDUCE_CUH_
#define JAXKERNELS_CORE_REDUCE_CUH_

#include "core/numeric.cuh"

namespace jaxkernels {

inline constexpr int kWarpSize = 32;
inline constexpr int kMaxWarpsPerBlock = 32;

// A reduction is a type with `Combine(a, b)` and `Identity()`.
template <typename C>
struct MaxReduction {
  using Value = C;
  __device__ static C Combine(C a, C b) { return Max(a, b); }
  __device__ static C Identity() { return -kInfinity<C>; }
};

template <typename C>
struct SumReduction {
  using Value = C;
  __device__ static C Combine(C a, C b) { return a + b; }
  __device__ static C Identity() { return C(0); }
};

__device__ inline float ShuffleXor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ inline double ShuffleXor(double value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
// The value of the next lane, and of the first one behind the last.
template <typename C>
__device__ C ShuffleNext(C value) {
  return __shfl_sync(0xffffffffu, value, (threadIdx.x + 1) % kWarpSize);
}

// Butterfly over kLanes neighbouring lanes; the result is valid in all of them.
// Requires: all 32 lanes of the warp take part, groups that have no work included.
template <typename Reduction, int kLanes>
__device__ typename Reduction::Value GroupAllReduce(typename Reduction::Value value) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    value = Reduction::Combine(value, ShuffleXor(value, mask));
  }
  return value;
}

// All-reductions over a block, one barrier each: every warp reduces the warps' partial results for
// itself. Two scratch lines take turns: a warp that is already in the next reduction writes the
// other line, and it can only come back to this one after a barrier that all readers have passed.
// Requires: all threads of the block take part, and blockDim.x is a multiple of 32.
template <typename Value>
class BlockReducer {
 public:
  struct Scratch {
    Value line[2][kMaxWarpsPerBlock];
  };

  __device__ explicit BlockReducer(Scratch& scratch) : scratch_(scratch) {}

  template <typename Reduction>
  __device__ Value AllReduce(Value value) {
    const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
    Value* line = scratch_.line[turn_];
    turn_ ^= 1;
    value = GroupAllReduce<Reduction, kWarpSize>(value);
    if (lane == 0) line[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    if (warps > 8) return Meet<Reduction, kMaxWarpsPerBlock>(line, warps);
    return warps > 4 ? Meet<Reduction, 8>(line, warps) : Meet<Reduction, 4>(line, warps);
  }

 private:
  // Of up to kWidth warps.
  template <typename Reduction, int kWidth>
  __device__ static Value Meet(const Value* line, int warps) {
    const int warp = threadIdx.x % kWidth;
    return GroupAllReduce<Reduction, kWidth>(warp < warps ? line[warp] : Reduction::Identity());
  }

  Scratch& scratch_;
  int turn_ = 0;
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_REDUCE_CUH_
