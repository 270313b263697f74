// Tiers `warp` and `block`: a row lives in registers, of a group of lanes within a warp or of all
// threads of a block.
//
// Work split: lane l of a group owns packs l, l + lanes, ... of its row, at most kPacks of them. A
// group works on kRows rows at a time (two if rows are short, to keep more loads in flight) in a
// grid-stride loop. In tier `block` each block has one row, up to the maximum grid size.
// Memory: every element is read once and written once (or one scalar per row is written), in
// 16-byte packs, with neighbouring lanes on neighbouring packs.
// Requires: inputs aligned like the result; the window of a row has at most lanes * kPacks packs;
// blockDim.x is a multiple of 32.
// tier_warp_staged.cuh handles short unaligned rows.
#pragma once

#include "rows/cuda/half_losses.cuh"
#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"
#include "rows/register_rules.h"

namespace jaxkernels {

template <typename Op, typename Group, int kPacks, int kRows, bool kAligned>
__device__ void RunInRegisters(const RowArgs<Op>& args) {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  __shared__ typename Group::Scratch scratch;
  Group group(scratch);
  const int lanes = Group::Lanes(), lane = Group::Lane();
  // Whether no lane of this warp has pack p of a row. The warp then skips it, if arithmetic limits
  // the kernel. TB/s read, 2^28 elements: all packs; with skips (2026-11, on different H200s; the
  // second was 2 to 4 percent slower in equal kernels):
  // H200 bf16 loss 1100, 3386, 4771, 8191, 12289 cols: 1.71, 2.34, 2.19, 2.09, 2.35; 1.90, 2.41,
  // 2.42, 2.38, 2.72
  // H200 bf16 loss 16384 cols (aligned): 3.26; 2.99
  // H200 f32 loss 3125 cols: 3.34; 3.18
  const auto is_past = [&](const RowView<Op, kAligned>& row, int p) {
    if (!kIsHalf<T> || kAligned || Op::kStoresElements || lanes < kWarpSize) return false;
    return p * lanes + lane / kWarpSize * kWarpSize >= row.packs;
  };

  // A row past the end has an empty window.
  const int64_t group_row = Group::FirstRow(), first = Group::FirstRowInStep();
  for (int64_t offset = 0; first + offset < args.rows; offset += Group::RowsOfGrid()) {
    RowView<Op, kAligned> view[kRows];
    int label[kRows];
    typename Op::Scale scale[kRows];
    GivenRow<Op> given[kRows];
    InputPacks<Op> pack[kRows][kPacks];
    C term[kRows][kPacks][Pack<T>::kSize];
    RowStatistics<Op> found[kRows];

    // Load: the loads of all packs of all rows and inputs are issued before the first use.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      view[r] = RowView<Op, kAligned>(args, group_row + offset + r);
      label[r] = args.LabelOf(group_row + offset + r);
      scale[r] = args.ScaleOf(group_row + offset + r);
      LoadPacks<Inputs::kOnPacks>(pack[r], args, view[r], lane, lanes);
    }

    // Reduce.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      MaskAndHidePacks(pack[r], args, view[r], lane, lanes);
      found[r] = RowStatistics<Op>::Empty();
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (is_past(view[r], p)) continue;
        if constexpr (Op::kUsesMax) {
          found[r].max = Max(found[r].max, MaxOfPacks(args.op, pack[r][p]));
        }
        ForgetPacks<Op>(pack[r][p]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      C largest = found[r].max;
      if constexpr (Op::kUsesMax) {
        found[r].max = Op::Reference(ReduceMax(args.OpWith(scale[r]), group, largest));
      }
      const auto add_all = [&](const auto& terms) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          if (is_past(view[r], p)) continue;
          if (Op::kKeepsTerm && view[r].IsBlind(p * lanes, lanes)) {
#pragma unroll
            for (C& nothing : term[r][p]) nothing = 0;
            continue;
          }
          AddPacks(args.OpWith(scale[r]), terms, pack[r][p], found[r].max, term[r][p],
                   found[r].sum);
          ForgetPacks<Op>(pack[r][p]);
        }
      };
      WithTerms(args.OpWith(scale[r]), found[r].max, largest, !MakesAllSums(args.op), add_all);
      given[r] = args.GivenOf(args.OpWith(scale[r]), group_row + offset + r, label[r]);
    }
    // In an in-place call other lanes may overwrite the elements at the labels, so all lanes must
    // have read them.
    if constexpr (Op::kTakesLabel) __syncwarp();
#pragma unroll
    for (int r = 0; r < kRows; ++r) AllReduceSums(args.OpWith(scale[r]), group, found[r]);

    // Store.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const typename Op::Row row = RowOf<Op>(found[r], given[r]);
      if constexpr (Op::kStores > 0) {
        if (lane == 0) args.StoreScalars(group_row + offset + r, row.scalars);
      }
      if constexpr (Op::kStoresElements) {
        WithTermsOf(args.OpWith(scale[r]), row, [&](const auto& terms) {
#pragma unroll
          for (int p = 0; p < kPacks; ++p) {
            const int index = p * lanes + lane;
            if (!view[r].Has(index)) continue;
            C result[Pack<T>::kSize];
            if constexpr (Op::kKeepsTerm) {
              FinishTerms(args.OpWith(scale[r]), term[r][p], row, result);
            } else {
              FinishPacks(args.OpWith(scale[r]), terms, view[r], pack[r][p], row, index, result);
            }
            StoreResults(args, view[r], index, result);
          }
        });
        ClearHidden(args, view[r], row, lane, view[r].packs, lanes);
      }
    }
  }
}

template <typename Op, int kLanes, int kPacks, int kRows, bool kAligned>
__global__ void __launch_bounds__(kWarpTierThreads) WarpTierKernel(RowArgs<Op> args) {
  using Group = LaneGroup<kLanes, kRows>;
  if constexpr (kPacksTerms<Op>) {
    static_assert(kRows == 1, "a lane has packs of one row");
    RunHalfLoss<Op, Group, kPacks, kAligned>(args);
  } else {
    RunInRegisters<Op, Group, kPacks, kRows, kAligned>(args);
  }
}

template <typename Op, bool kAligned>
__global__ void __maxnreg__(BlockRegisters(kDTypeOf<typename Op::Storage>))
    BlockTierKernel(RowArgs<Op> args) {
  constexpr int kPacks = kBlockPacks / Op::kInputs;
  if constexpr (kPacksTerms<Op>) {
    RunHalfLoss<Op, BlockGroup<Op>, kPacks, kAligned>(args);
  } else {
    RunInRegisters<Op, BlockGroup<Op>, kPacks, 1, kAligned>(args);
  }
}

}  // namespace jaxkernels
