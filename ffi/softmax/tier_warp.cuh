// Tier `warp`: a row lives in the registers of a group of kLanes lanes.
//
// Work split: lane l of a group owns packs l, l + kLanes, ... of its row, kPacks of them at most; a
// group works on kRows
//   rows at a time (two where a row is short, to keep more loads in flight) and walks the rows
//   grid-stride.
// Memory: every element is read once and written once, in 16-byte packs, neighbouring lanes on
// neighbouring packs. Requires: the window of a row has at most kLanes * kPacks packs; blockDim.x
// is a multiple of 32. Short rows that begin within a pack go through tier_warp_staged.cuh.
#ifndef JAXKERNELS_SOFTMAX_TIER_WARP_CUH_
#define JAXKERNELS_SOFTMAX_TIER_WARP_CUH_

#include "softmax/plan.h"
#include "softmax/row_args.cuh"

namespace jaxkernels {

template <typename Op, int kLanes, int kPacks, int kRows, bool kAligned>
__global__ void __launch_bounds__(kWarpTierThreads) WarpTierKernel(RowArgs<Op> args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  const int lane = threadIdx.x % kLanes;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;

  // All groups of a warp make the same number of turns, because the shuffles need every lane; a row
  // past the end has an empty window.
  const int64_t group_row = thread / kLanes * kRows;
  const int64_t warp_row = thread / kWarpSize * (kWarpSize / kLanes) * kRows;
  const int64_t step = threads / kLanes * kRows;
  for (int64_t offset = 0; warp_row + offset < args.rows; offset += step) {
    RowWindow<T, kAligned> window[kRows];
    InputPacks<Op> pack[kRows][kPacks];
    C term[kRows][kPacks][Pack<T>::kSize];
    C max[kRows], sum[kRows];

    // Load: all packs of all rows and inputs before the first use.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      window[r] = RowWindow<T, kAligned>(group_row + offset + r, args.rows, args.cols);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int index = p * kLanes + lane;
        if (window[r].Has(index)) {
          LoadPacks<Op>(pack[r][p], args, window[r], index);
        } else {
          FillPacks<Op>(pack[r][p]);
        }
      }
    }

    // Reduce.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      max[r] = Op::Fill();
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        MaskPacks<Op>(pack[r][p], args, window[r], p * kLanes + lane);
        if constexpr (Op::kUsesMax) max[r] = Max(max[r], MaxOfPack(pack[r][p][0]));
        ForgetPacks<Op>(pack[r][p]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (Op::kUsesMax) max[r] = GroupAllReduce<MaxReduction<C>, kLanes>(max[r]);
      sum[r] = 0;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        sum[r] += SumOfPacks<Op>(pack[r][p], max[r], term[r][p]);
        ForgetPacks<Op>(pack[r][p]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = GroupAllReduce<SumReduction<C>, kLanes>(sum[r]);

    // Store.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const typename Op::Row row(max[r], sum[r]);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int index = p * kLanes + lane;
        if (!window[r].Has(index)) continue;
        C result[Pack<T>::kSize];
        if constexpr (Op::kKeepsTerm) {
          FinishTerms<Op>(term[r][p], row, result);
        } else {
          FinishPacks<Op>(pack[r][p], row, result);
        }
        StorePack(args.out, window[r], index, result);
      }
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_TIER_WARP_CUH_
