// Groups of threads that share a row: their rows and their all-reductions.
#pragma once

#include "core/reduce.cuh"

namespace jaxkernels {

// kLanes neighbouring lanes share a row. Loops test FirstRowInStep, the warp's first row, so that
// all its groups iterate equally often: the shuffles need every lane.
template <int kLanes, int kRows>
struct LaneGroup {
  struct Scratch {};
  static constexpr bool kMeetsInTwoSteps = false;

  LaneGroup() = default;
  __device__ explicit LaneGroup(Scratch& /*scratch*/) {}

  __device__ static int64_t Thread() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  }
  __device__ static int Lanes() { return kLanes; }
  __device__ static int Lane() { return threadIdx.x % kLanes; }
  __device__ static int64_t FirstRow() { return Thread() / kLanes * kRows; }
  __device__ static int64_t FirstRowInStep() {
    return Thread() / kWarpSize * (kWarpSize / kLanes) * kRows;
  }
  __device__ static int64_t RowsOfGrid() {
    return static_cast<int64_t>(gridDim.x) * blockDim.x / kLanes * kRows;
  }
  template <typename Reduction, int kCount>
  __device__ void AllReduce(typename Reduction::Value (&value)[kCount]) {
    GroupAllReduce<Reduction, kLanes>(value);
  }
};

// BlockReducer for the maximum and the sums of an operation.
template <typename Op>
using RowBlockReducer = BlockReducer<typename Op::C, Op::kSums>;

// All threads of a block share a row.
template <typename Op>
struct BlockGroup : RowBlockReducer<Op> {
  using RowBlockReducer<Op>::RowBlockReducer;

  __device__ static int Lanes() { return blockDim.x; }
  __device__ static int Lane() { return threadIdx.x; }
  __device__ static int64_t FirstRow() { return blockIdx.x; }
  __device__ static int64_t FirstRowInStep() { return blockIdx.x; }
  __device__ static int64_t RowsOfGrid() { return gridDim.x; }
};

}  // namespace jaxkernels
