// Tier `warp`, staged: short rows that waste lanes in tier_registers.cuh, mostly because they are
// unaligned. A chunk of consecutive rows is contiguous in memory and goes through a warp's shared
// memory.
//
// H200 bf16 fwd 33 cols, of the copy rate (2026-11): head and tail peeled 0.40, staged 0.97
//
// Work split: a warp takes chunks (staged_chunk.cuh) in a grid-stride loop. args.lanes neighbouring
// lanes compute a row: lane l has elements l, l + lanes, ... of it in registers.
// Memory: one read and one write per element in 16-byte packs. The copies of the warp's next chunk
// start when this one is stored; other warps compute meanwhile.
// Banks: the lanes of a row read neighbouring elements. The distance between the rows that a warp
// computes at once limits conflicts to two-way, if cols is odd and the chunk has many rows.
// Unaligned rows of whole packs have up to 16-way conflicts.
// Requires: cols is at most args.lanes * kPerLane and at least args.lanes * (kPerLane - 2);
// args.staged_rows rows fill whole packs, and are a multiple of the rows that a warp computes at
// once; shared memory for kInputs chunks per warp, each one pack larger if any array is unaligned.
#pragma once

#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/cuda/staged_chunk.cuh"
#include "rows/register_rules.h"

namespace jaxkernels {

__device__ inline int Log2OfPower(int power) { return __ffs(power) - 1; }

// A group of lanes that share a row; their number is a power of two.
class RowLanes {
 public:
  static constexpr bool kMeetsInTwoSteps = false;

  __device__ explicit RowLanes(int lanes) : lanes_(lanes), log2_(Log2OfPower(lanes)) {}

  __device__ int Lane() const { return threadIdx.x & (lanes_ - 1); }
  // The index of this lane's row among those that a warp computes at once, and their number.
  __device__ int Row() const { return threadIdx.x % kWarpSize >> log2_; }
  __device__ int Rows() const { return kWarpSize >> log2_; }
  // There are no branches: they would take longer than the steps that they skip.
  template <typename Reduction, int kCount>
  __device__ void AllReduce(typename Reduction::Value (&value)[kCount]) const {
#pragma unroll
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
#pragma unroll
      for (auto& one : value) {
        const auto other = ShuffleXor(one, mask);
        one = Reduction::Combine(one, mask < lanes_ ? other : Reduction::Identity());
      }
    }
  }

 private:
  const int lanes_, log2_;
};

// Computes row `row` of a chunk in place; `index` is its row in the array, and may be past the end.
template <int kPerLane, typename Op>
__device__ void ComputeStagedRow(const RowArgs<Op>& args, const StagedChunk<Op>& chunk,
                                 const RowLanes& group, int row, int64_t index) {
  using C = typename Op::C;
  const int lanes = args.lanes, first = group.Lane();
  // Only the last two iterations can be past the end of the row.
  const auto has = [&](int k) { return k < kPerLane - 2 || first + k * lanes < chunk.cols; };
  C value[kPerLane][kValues<Op>], term[kPerLane];
  auto found = RowStatistics<Op>::Empty();
  const int label = args.LabelOf(index);
  const auto& op = args.OpOf(index);

  // Load.
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
    const auto* const from = chunk.Element(i, row * chunk.cols + first);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      value[k][i] = has(k) ? static_cast<C>(from[k * lanes]) : Op::Fill(i);
    }
  }
  if constexpr (Op::kTakesColumn) {
    WithColumn(op, [&](const auto* numbers) {
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        value[k][Op::kInputs] = has(k) ? static_cast<C>(numbers[first + k * lanes]) : C(0);
      }
    });
  }
  uint32_t hidden = 0;  // bit k is 1 if a mask or the band hides element k
  if constexpr (Op::kHides || kHasMask<Op>) {
    typename Op::VisibleColumns seen;
    if (index < args.rows) seen = args.op.VisibleOf(index, args.cols);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const int column = first + k * lanes;
      const bool in_band = column >= seen.begin && column < seen.end;
      if (in_band && (seen.mask == nullptr || seen.mask[column] != 0)) continue;
      hidden |= 1u << k;
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) value[k][i] = Op::Fill(i);
    }
  }

  if constexpr (Op::kTakesScales) Scale(op, value);

  // Reduce.
  C own_max = found.max;
  if constexpr (Op::kUsesMax) {
    own_max = MaxOf(op, value);
    found.max = Op::Reference(AllReduce<MaxReduction<C>>(group, own_max));
  }
  AddTerms(op, value, found.max, own_max == found.max, term, found.sum);
  const GivenRow<Op> given = args.GivenOf(op, index, label, chunk.Element(0, row * chunk.cols));
  if constexpr (Op::kTakesLabel) __syncwarp();  // before another lane overwrites that element
  AllReduceSums(op, group, found);

  // Store.
  const typename Op::Row constants = RowOf(found, given);
  if constexpr (Op::kStores > 0) {
    if (first == 0) args.StoreScalars(index, constants.scalars);
  }
  if constexpr (Op::kStoresElements) {
    C result[kPerLane];
    if constexpr (Op::kKeepsTerm) {
      FinishTerms(op, term, constants, result);
    } else {
      Finish(op, value, constants, result);
    }
    if constexpr (Op::kCaps) Unscale(op, value, result);
    if constexpr (Op::kTakesLabel) ReplaceOthers(constants, first, lanes, result);
    auto* const to = chunk.Element(0, row * chunk.cols + first);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (kMasksLogits<Op> && (hidden >> k & 1) != 0) result[k] = 0;
      if (has(k)) to[k * lanes] = static_cast<typename Op::Storage>(result[k]);
    }
  }
}

template <typename Op, int kPerLane>
__global__ void __launch_bounds__(kStagedTierThreads) WarpStagedTierKernel(RowArgs<Op> args) {
  extern __shared__ __align__(kPackBytes) unsigned char dynamic_smem[];
  const StagedChunk<Op> chunk(args, dynamic_smem);
  const RowLanes group(args.lanes);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarpSize);
  const int64_t chunks = (args.rows + chunk.rows - 1) / chunk.rows;
  int64_t turn = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarpSize;

  for (; turn < chunks; turn += warps) {
    chunk.Fetch(turn * chunk.size);
    WaitForCopies();
    __syncwarp();
    const int step = group.Rows() * args.row_spacing;
#pragma unroll 1
    for (int first = group.Row() * args.row_spacing; first < chunk.rows; first += step) {
#pragma unroll 1
      for (int row = first; row < first + args.row_spacing; ++row) {
        ComputeStagedRow<kPerLane>(args, chunk, group, row, turn * chunk.rows + row);
      }
    }
    __syncwarp();
    if constexpr (Op::kStoresElements) chunk.Store(turn * chunk.size);
    __syncwarp();
  }
}

}  // namespace jaxkernels
