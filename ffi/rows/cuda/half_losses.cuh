// Losses of half types in tiers `warp` and `block`, which tier_registers.cuh describes.
// Instructions limit short rows: packed_terms.cuh says how they take few per element. To keep the
// cost per row low too, the label's result is stored by itself: nearly every pack of a warp of
// short rows holds some row's label.
#pragma once

#include "rows/cuda/packed_terms.cuh"
#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"

namespace jaxkernels {

// Loads a lane's packs of a row. A row that fills its layout needs no padding.
template <typename Op, bool kAligned, int kPacks>
__device__ void LoadRow(const RowArgs<Op>& args, const RowView<Op, kAligned>& view, int lane,
                        int lanes, InputPacks<Op> (&pack)[kPacks]) {
  if (kAligned && !kHasMask<Op> && view.packs == kPacks * lanes) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      CopyPack(&pack[p].input[0], args.in[0], view.first + p * lanes + lane);
    }
  } else {
    LoadPacks<Inputs::kOnPacks>(pack, args, view, lane, lanes);
    MaskAndHidePacks(pack, args, view, lane, lanes);
  }
}

// Whether pack p of every lane of this warp lies past the end of every row. Rows fill more than
// half of every layout but the smallest. `packs`: the packs of the longest row.
template <int kPacks>
__device__ bool IsPast(int p, int packs, int lane, int lanes) {
  constexpr int kLeast = kPacks > 4 ? kPacks / 2 + 1 : 1;
  return p >= kLeast && p * lanes + lane / kWarpSize * kWarpSize >= packs;
}

// Adds the other sums of a row, which smoothing and entropies need. Differences are scaled after
// the subtraction, as in PackedTerms, so that rounding changes both kinds of sums alike: an entropy
// is their difference. Elements that are -inf once scaled do not count.
template <typename Op, bool kAligned, int kPacks>
__device__ void AddOtherSums(const Op& op, const RowView<Op, kAligned>& view,
                             const InputPacks<Op> (&pack)[kPacks], float largest, int lane,
                             int lanes, RowStatistics<Op>& found) {
  constexpr int kSize = Pack<typename Op::Storage>::kSize;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!view.Has(p * lanes + lane)) continue;
    float value[kSize][1], difference[kSize], term[kSize];
    Widen(op, pack[p], value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      difference[j] = RoundedProduct(value[j][0] - largest, op.scale.factor);
      term[j] = FastExp(difference[j]);
    }
    const auto counts = [&](int j) {
      return RoundedProduct(value[j][0], op.scale.factor) != -kInfinity<float>;
    };
    Op::AddWeighted(difference, counts, term, found.sum);
  }
}

// Stores a lane's part of the gradient.
template <typename Op, bool kAligned, int kPacks>
__device__ void StoreGradient(const RowArgs<Op>& args, const RowView<Op, kAligned>& view,
                              const InputPacks<Op> (&pack)[kPacks], int packs,
                              const PackedTerms<typename Op::Storage>& terms,
                              const typename Op::LedRow& row, float slope, int lane, int lanes) {
  const float factor = row.factor * terms.Correction();
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (IsPast<kPacks>(p, packs, lane, lanes)) break;
    float result[Pack<typename Op::Storage>::kSize];
    terms.Compute(pack[p].input[0], result);
#pragma unroll
    for (float& one : result) one *= factor;
    if (view.Has(p * lanes + lane)) StoreResults(args, view, p * lanes + lane, result);
  }
  // Overwrites the result that the same thread has stored there.
  const int at_label = view.PackOf(row.label);
  if (at_label < view.packs && at_label % lanes == lane) StoreAtLabel(args, view, row, slope);
}

template <typename Op, typename Group, int kPacks, bool kAligned>
__device__ void RunHalfLoss(const RowArgs<Op>& args) {
  using T = typename Op::Storage;
  constexpr int kSize = Pack<T>::kSize;
  __shared__ typename Group::Scratch scratch;
  Group group(scratch);
  const int lanes = Group::Lanes(), lane = Group::Lane();
  const int packs = (static_cast<int>(args.cols) + (kAligned ? 1 : 2) * (kSize - 1)) / kSize;

  // A row past the end has an empty window.
  const int64_t group_row = Group::FirstRow(), first = Group::FirstRowInStep();
  for (int64_t offset = 0; first + offset < args.rows; offset += Group::RowsOfGrid()) {
    const int64_t index = group_row + offset;
    const RowView<Op, kAligned> view(args, index);
    InputPacks<Op> pack[kPacks];

    // Load: the loads of all packs are issued before the first use.
    const int label = args.LabelOf(index);
    const Op op = args.OpOf(index);
    LoadRow(args, view, lane, lanes, pack);

    // Reduce.
    auto found = RowStatistics<Op>::Empty();
    const float largest = Op::Reference(AllReduce<MaxReduction<float>>(group, LargestOf<T>(pack)));
    const float scaled = RoundedProduct(largest, op.scale.factor);
    found.max = Op::Reference(scaled);
    const float subtracted = scaled == -kInfinity<float> ? 0 : largest;
    PackedTerms<T> terms(subtracted, op.scale.factor);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (IsPast<kPacks>(p, packs, lane, lanes)) break;
      terms.Add(pack[p].input[0], found.sum[0]);
    }
    found.sum[0] *= terms.Correction();
    found.sum[1] = terms.Count();
    if (op.all_sums) AddOtherSums(op, view, pack, subtracted, lane, lanes, found);
    const GivenRow<Op> given =
        args.GivenOf(op, index, label, args.in[0] + view.first * kSize + view.head);
    // In an in-place call other lanes may overwrite the elements at the labels, so all lanes must
    // have read them.
    __syncwarp();
    AllReduceSums(op, group, found);

    // Store.
    if constexpr (!Op::kStoresElements) {
      if (lane == 0) args.StoreScalars(index, RowOf<Op>(found, given).scalars);
    } else {
      const typename Op::LedRow row(found, given);
      if (lane == 0) args.StoreScalars(index, row.scalars);
      if (!row.is_left_out && row.constant == 0 && !(kMasksLogits<Op> && IsSpoiled(row))) {
        StoreGradient(args, view, pack, packs, terms, row, given.slope, lane, lanes);
      } else {
        const typename Op::Row whole = RowOf<Op>(found, given);
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          const int at = p * lanes + lane;
          if (!view.Has(at)) continue;
          float result[kSize];
          FinishPacks(op, SingleTerms(), view, pack[p], whole, at, result);
          StoreResults(args, view, at, result);
        }
        ClearHidden(args, view, whole, lane, view.packs, lanes);
      }
    }
  }
}

}  // namespace jaxkernels
