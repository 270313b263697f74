// Tier `stream`: statistics and results as separate kernels, for rows that are sharded over
// devices. Each kernel reads a row once and keeps nothing of it.
//
// Work split: a few lanes, a warp or a block take rows in a grid-stride loop; lane l owns packs l,
// l + lanes, ... of a row.
// Memory: the statistics kernel reads every element once and writes a maximum and the sums per row;
// the result kernel reads and writes every element once.
// Aligned rows have kernels of their own. Unaligned kernels take 1.5 to 2.1 times as long for them
// (H200, float32 and bfloat16 rows of 64 and 256 columns, 2026-11).
// Requires: any cols; blockDim.x is a multiple of 32.
#pragma once

#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/long_row_rules.h"

namespace jaxkernels {

// Stores statistics[row] = {maximum, sums of the terms}. The sums are relative to 0 if all elements
// are -inf, so that the columns of other devices determine the result.
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
    const auto& op = args.OpOf(row);
    auto online = RowStatistics<Op>::Empty();
    for (int first = lane; first < view.packs; first += lanes * kUnroll) {
      InputPacks<Op> pack[kUnroll];
      LoadPacks<Inputs::kAnywhere>(pack, args, view, first, lanes);
      MaskAndHidePacks(pack, args, view, first, lanes);
      online.Add(op, pack);
    }
    online.MergeOver(op, group);
    if (lane == 0 && row < args.rows) {
      C* const to = statistics + row * (1 + Op::kSums);
      to[0] = online.max;
#pragma unroll
      for (int s = 0; s < Op::kSums; ++s) to[1 + s] = online.sum[s];
    }
  }
}

// Computes and stores the results of a lane's packs of a row: `begin`, begin + stride, ... below
// `end`. kCount loads are in flight at once. make_row returns the row constants; it is called after
// the first loads are issued.
template <int kCount, typename Op, bool kAligned, typename MakeRow>
__device__ void FinishRow(const RowArgs<Op>& args, const Op& op, const RowView<Op, kAligned>& view,
                          MakeRow make_row, int begin, int end, int stride) {
  typename Op::Row row = RowOf<Op>({}, {});
  bool has_row = false;
#pragma unroll 1
  for (int first = begin; first < end; first += kCount * stride) {
    InputPacks<Op> pack[kCount];
    TakePacks(pack, args, view, first, stride);
    if (!has_row) row = make_row();
    has_row = true;
    WithTermsOf(op, row, [&](const auto& terms) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        const int index = first + u * stride;
        if (index >= end || !view.Has(index)) continue;
        typename Op::C result[Pack<typename Op::Storage>::kSize];
        FinishPacks(op, terms, view, pack[u], row, index, result);
        StoreResults(args, view, index, result);
      }
    });
  }
  ClearHidden(args, view, row, begin, end, stride);
}

// Computes the result from the statistics of whole rows, or without any if the operation reduces
// nothing. args.lanes neighbouring threads share a row, or each of its args.branches parts. (A row
// scalar is computed from the statistics alone, not by this kernel.)
template <typename Op, bool kAligned>
__global__ void __maxnreg__(kLongRowRegisters)
    RowFinishKernel(RowArgs<Op> args, const typename Op::C* statistics) {
  static_assert(Op::kStoresElements && Op::kStores == 0);
  const int lanes = args.lanes;
  const int groups = blockDim.x / lanes, lane = threadIdx.x % lanes;

  for (int64_t part = int64_t{blockIdx.x} * groups + threadIdx.x / lanes;
       part < args.rows * args.branches; part += int64_t{gridDim.x} * groups) {
    const int64_t row = part <= UINT32_MAX
                            ? static_cast<uint32_t>(part) / static_cast<uint32_t>(args.branches)
                            : part / args.branches;
    const int index = static_cast<int>(part - row * args.branches);
    const int label = args.LabelOf(row);
    const auto& op = args.OpOf(row);
    // Long rows begin at a cache line; each part is a multiple of args.lanes packs.
    RowView<Op, kAligned> view(args, row);
    if (lanes > kWarpSize) view = view.StartAtLine();
    const int turn = args.branches * lanes, share = (view.packs + turn - 1) / turn * lanes;
    const auto make_row = [&] {
      typename Op::Found found = {};
      if constexpr (Op::kSums > 0) {
        const typename Op::C* const from = statistics + row * (1 + Op::kSums);
        found.max = from[0];
        if constexpr (Op::kUsesMax) found.max = Op::Reference(found.max);
#pragma unroll
        for (int s = 0; s < Op::kSums; ++s) found.SetSum(s, from[1 + s]);
      }
      return RowOf<Op>(found, args.GivenOf(op, row, label));
    };
    FinishRow<kStreamPacksInFlight / Op::kInputs>(args, op, view, make_row, index * share + lane,
                                                  min(view.packs, (index + 1) * share), lanes);
  }
}

}  // namespace jaxkernels
