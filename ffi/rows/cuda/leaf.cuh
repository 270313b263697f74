// A leaf of a row: its statistics, in one order of additions, wherever the leaf lies in memory.
//
// Element i of a leaf is of class i mod (32 * pack). Each class is summed in ascending order. The
// classes meet in one tree: those of a pack first, half a pack apart, a quarter, and so on; then
// the packs of the lanes, 16 apart, 8, 4, 2, 1.
// A lane sums the classes of one pack, a slot each. A leaf that begins some packs into the window
// of its warp only rotates the lanes: the tree gives the same bits, because a + b is b + a. One
// that begins within a pack rotates the slots too, and RotateSlots takes that back.
#ifndef JAXKERNELS_ROWS_CUDA_LEAF_CUH_
#define JAXKERNELS_ROWS_CUDA_LEAF_CUH_

#include "rows/cuda/row_groups.cuh"
#include "rows/cuda/row_statistics.cuh"

namespace jaxkernels {

// Where the leaves of a row begin: so many packs and elements behind the first pack of their warp.
struct LeafShift {
  int packs, elements;

  __device__ bool Any() const { return packs + elements > 0; }
  // Lanes whose next pack, behind those of the leaf's warp, holds the end of the leaf: its spill.
  __device__ int Spill() const { return packs + (elements > 0 ? 1 : 0); }
};

// Replaces elements of a lane's first pack that belong to the leaf before or, of the spill, behind.
template <typename Op>
__device__ void KeepOfLeaf(InputPacks<Op>& pack, bool is_spill, LeafShift shift) {
  const int lane = threadIdx.x % kWarpSize;
  if (lane == shift.packs && shift.elements > 0) {
    constexpr int kSize = Pack<typename Op::Storage>::kSize;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      KeepElements(pack.input[i], is_spill ? 0 : shift.elements, is_spill ? shift.elements : kSize,
                   FillOf<Op>(i));
    }
  } else if (is_spill ? lane >= shift.packs : lane < shift.packs) {
    FillPacks<Op>(pack);
  }
}

// Gives slot j the value of slot (j + by) mod kSize, from the next lane where that is past the end.
// Requires: `by` is the same in all lanes.
template <typename C, int kSize>
__device__ void RotateSlots(C (&slot)[kSize], int by) {
#pragma unroll
  for (int step = 1; step < kSize; step *= 2) {
    if ((by & step) == 0) continue;
    C moved[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      moved[j] = j + step < kSize ? slot[j + step] : ShuffleNext(slot[j + step - kSize]);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) slot[j] = moved[j];
  }
}

// The sums of the classes of one pack.
template <typename Op>
struct ClassSums {
  using C = typename Op::C;
  static constexpr int kSize = Pack<typename Op::Storage>::kSize;

  C slot[Op::kSums][kSize] = {};

  // Adds the terms of a pack.
  __device__ void Add(const Op& op, const InputPacks<Op>& pack, C max) {
    C value[kSize][Op::kInputs];
    Widen<Op>(pack, value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      C term = op.Term(value[j], max);
      if constexpr (Op::kSums == 2) {
        slot[1][j] = RoundedSum(slot[1][j], op.SecondTerm(term, value[j]));
      }
      slot[0][j] = RoundedSum(slot[0][j], term);
    }
  }

  // Of all classes that the group has, where element 0 lies in slot `shift`.
  template <typename Group>
  __device__ void TotalOver(const Op& op, Group& group, int shift, RowStatistics<Op>& found) {
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) {
      if (shift > 0) RotateSlots(slot[s], shift);
      found.SetSum(s, SumPairwise(slot[s]));
    }
    AllReduceSums(op, group, found);
  }
};

// The statistics of one leaf, by a warp; valid in all lanes. for_packs(again, body) gives
// body(pack, is_first) each of the lane's packs in its order: first for the maximum, then, `again`,
// for the sums. The first time it also loads `spill`, in the lanes that have one.
template <bool kAligned, typename Op, typename ForPacks>
__device__ RowStatistics<Op> StatisticsOfLeaf(const Op& op, LeafShift shift, InputPacks<Op>& spill,
                                              ForPacks for_packs) {
  using C = typename Op::C;
  LaneGroup<kWarpSize, 1> warp;
  auto found = RowStatistics<Op>::Empty();
  const bool is_shifted = shift.Any();
  const auto keep_own = [&](InputPacks<Op>& pack, bool is_first) {
    if (is_first && is_shifted) KeepOfLeaf(pack, false, shift);
  };
  if constexpr (Op::kUsesMax) {
    for_packs(false, [&](InputPacks<Op> pack, bool is_first) {
      keep_own(pack, is_first);
      found.max = Max(found.max, MaxOfPacks(op, pack));
    });
    if (is_shifted) {
      KeepOfLeaf(spill, true, shift);
      found.max = Max(found.max, MaxOfPacks(op, spill));
    }
    found.max = AllReduce<MaxReduction<C>>(warp, found.max);
  }
  const C reference = found.Reference(found.max);
  ClassSums<Op> sums;
  for_packs(Op::kUsesMax, [&](InputPacks<Op> pack, bool is_first) {
    keep_own(pack, is_first);
    sums.Add(op, pack, reference);
  });
  if (is_shifted) {
    KeepOfLeaf(spill, true, shift);
    sums.Add(op, spill, reference);
  }
  sums.TotalOver(op, warp, kAligned ? 0 : shift.elements, found);
  return found;
}

// The statistics of a row, or of some leaves in a sequence, from those of its `count` leaves, by a
// warp; valid in all lanes. Lane l takes leaves l, l + 32, ..., in this order, and then the lanes
// meet in one tree.
template <typename Op, typename Found>
__device__ RowStatistics<Op> StatisticsOfLeaves(const Found* leaves, int count) {
  using C = typename Op::C;
  using Exact = typename Op::Found::Exact;
  LaneGroup<kWarpSize, 1> warp;
  auto found = RowStatistics<Op>::Empty();
  const int lane = threadIdx.x % kWarpSize;
  if constexpr (Op::kUsesMax) {
    for (int i = lane; i < count; i += kWarpSize) found.max = Max(found.max, leaves[i].max);
    found.max = AllReduce<MaxReduction<C>>(warp, found.max);
  }
  const C reference = found.Reference(found.max);
  for (int i = lane; i < count; i += kWarpSize) {
    RowStatistics<Op> leaf(leaves[i]);
    leaf.MakeRelativeTo(reference);
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) {
      found.SetSum(s, SumReduction<Exact>::Combine(found.ExactSum(s), leaf.ExactSum(s)));
    }
  }
  AllReduceExactSums(warp, found);
  return found;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_LEAF_CUH_
