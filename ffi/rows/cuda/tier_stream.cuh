// Tier `stream`: the two parts of an operation, for rows that are spread over devices. Each part
// reads a row once and keeps nothing of it.
//
// Work split: some lanes, a warp or a block walk their rows, in their order, grid-stride; lane l
// owns packs l, l + lanes, ... of a row.
// Memory: the statistics read every element once and write a maximum and one or two sums a row; the
// result reads and writes every element once.
// Requires: any cols; blockDim.x is a multiple of 32.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_STREAM_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_STREAM_CUH_

#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/memory_rules.h"

namespace jaxkernels {

// statistics[row] = {maximum, sums of the terms}; relative to 0 where all is -inf, so that the
// columns of other devices decide what such a row gives.
template <typename Op, typename Group, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters)
    RowStatisticsKernel(RowArgs<Op> args, typename Op::C* statistics) {
  using C = typename Op::C;
  constexpr int kUnroll = kStreamPacksInFlight / Op::kInputs;
  __shared__ typename Group::Scratch scratch;
  Group group(scratch);
  const int lanes = Group::Lanes(), lane = Group::Lane();

  const int64_t group_row = Group::FirstRow(), first_row = Group::FirstRowInStep();
  for (int64_t offset = 0; first_row + offset < args.rows; offset += Group::RowsOfGrid()) {
    const int64_t row = group_row + offset;
    const RowView<Op, kAligned> view(args, row);  // empty past the end
    auto online = RowStatistics<Op>::Empty();
    for (int first = lane; first < view.packs; first += lanes * kUnroll) {
      InputPacks<Op> pack[kUnroll];
      LoadPacks<Inputs::kAnywhere>(pack, args, view, first, lanes);
      MaskAndHidePacks(pack, args, view, first, lanes);
      online.Add(args.op, pack);
    }
    online.MergeOver(group);
    if (lane == 0 && row < args.rows) {
      C* const to = statistics + row * (1 + Op::kSums);
      to[0] = online.max;
#pragma unroll
      for (int s = 0; s < Op::kSums; ++s) to[1 + s] = online.sum[s];
    }
  }
}

// The result from the statistics of whole rows, or of operations that reduce nothing;
// args.lanes neighbouring threads share a row. (A row scalar follows from its statistics without
// the row.)
template <typename Op, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters)
    RowFinishKernel(RowArgs<Op> args, const typename Op::C* statistics) {
  using C = typename Op::C;
  static_assert(Op::kStoresElements && Op::kStores == 0);
  const int lanes = args.lanes;
  const int groups = blockDim.x / lanes, lane = threadIdx.x % lanes;

  for (int64_t row = int64_t{blockIdx.x} * groups + threadIdx.x / lanes; row < args.rows;
       row += int64_t{gridDim.x} * groups) {
    const RowView<Op, kAligned> view(args, row);
    typename Op::Found found = {};
    if constexpr (Op::kSums > 0) {
      const C* const from = statistics + row * (1 + Op::kSums);
      found.max = from[0];
      if constexpr (Op::kUsesMax) found.max = Op::Reference(found.max);
#pragma unroll
      for (int s = 0; s < Op::kSums; ++s) found.SetSum(s, from[1 + s]);
    }
    const typename Op::Row constants = RowOf<Op>(found, args.GivenOf(row));
    FinishRow<kStreamPacksInFlight / Op::kInputs>(args, view, constants, lane, view.packs, lanes);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_STREAM_CUH_
