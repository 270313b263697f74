// The threads that share a row: which rows are theirs, and how their partial results meet.
#ifndef JAXKERNELS_SOFTMAX_ROW_GROUPS_CUH_
#define JAXKERNELS_SOFTMAX_ROW_GROUPS_CUH_

#include "common/reduce.cuh"

namespace jaxkernels {

// kLanes neighbouring lanes share a row. All groups of a warp make the same number of turns,
// because the shuffles need every lane.
template <typename C, int kLanes, int kRows>
struct LaneGroup {
  struct Scratch {};

  LaneGroup() = default;
  __device__ LaneGroup(Scratch& /*scratch*/, int /*lanes*/) {}

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
  template <typename Reduction>
  __device__ C AllReduce(C value) {
    return GroupAllReduce<Reduction, kLanes>(value);
  }
  template <typename Reduction>
  __device__ void AllReduceRows(C (&value)[kRows]) {
#pragma unroll
    for (C& of_row : value) of_row = AllReduce<Reduction>(of_row);
  }
};

// Of a power of two.
__device__ inline int Log2OfPower(int power) { return __ffs(power) - 1; }

// As many lanes of a warp as the launch says share a row, a power of two of them.
template <typename C, int kRows>
class FewLanesGroup {
 public:
  struct Scratch {};

  __device__ FewLanesGroup(Scratch& /*scratch*/, int lanes) : FewLanesGroup(lanes) {}
  __device__ explicit FewLanesGroup(int lanes) : lanes_(lanes), log2_(Log2OfPower(lanes)) {}

  __device__ int Lanes() const { return lanes_; }
  __device__ int Lane() const { return threadIdx.x & (lanes_ - 1); }
  // The number of lanes divides `threads`, rounded down.
  __device__ int RowOf(int threads) const { return threads >> log2_; }
  __device__ int64_t FirstRow() const { return (Thread() >> log2_) * kRows; }
  // The same for all lanes of a warp.
  __device__ int64_t FirstRowInStep() const {
    return (Thread() / kWarpSize * kWarpSize >> log2_) * kRows;
  }
  __device__ int64_t RowsOfGrid() const {
    return (int64_t{gridDim.x} * blockDim.x >> log2_) * kRows;
  }

  // All rows at once, so that none waits for another.
  template <typename Reduction>
  __device__ void AllReduceRows(C (&value)[kRows]) const {
#pragma unroll 1
    for (int mask = lanes_ / 2; mask > 0; mask /= 2) {
#pragma unroll
      for (C& of_row : value) of_row = Reduction::Combine(of_row, ShuffleXor(of_row, mask));
    }
  }

 private:
  __device__ static int64_t Thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

  const int lanes_, log2_;
};

// All threads of a block share a row.
template <typename C>
struct BlockGroup {
  using Scratch = typename BlockReducer<C>::Scratch;

  BlockReducer<C> block;

  __device__ BlockGroup(Scratch& scratch, int /*lanes*/) : block(scratch) {}

  __device__ static int Lanes() { return blockDim.x; }
  __device__ static int Lane() { return threadIdx.x; }
  __device__ static int64_t FirstRow() { return blockIdx.x; }
  __device__ static int64_t FirstRowInStep() { return blockIdx.x; }
  __device__ static int64_t RowsOfGrid() { return gridDim.x; }
  template <typename Reduction>
  __device__ void AllReduceRows(C (&value)[1]) {
    value[0] = block.template AllReduce<Reduction>(value[0]);
  }
};

// As many threads as the launch says share a row, a power of two of them: some lanes of a warp, or
// all of a block.
template <typename C>
class AnyGroup : public FewLanesGroup<C, 1> {
 public:
  using Scratch = typename BlockReducer<C>::Scratch;

  __device__ AnyGroup(Scratch& scratch, int lanes) : FewLanesGroup<C, 1>(lanes), block_(scratch) {}

  template <typename Reduction>
  __device__ C AllReduce(C value) {
    if (this->Lanes() > kWarpSize) return block_.template AllReduce<Reduction>(value);
    C rows[1] = {value};
    this->template AllReduceRows<Reduction>(rows);
    return rows[0];
  }

 private:
  BlockReducer<C> block_;
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_ROW_GROUPS_CUH_
