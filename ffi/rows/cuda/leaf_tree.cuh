// How the statistics of the leaves of a row meet, and what the result of a leaf is made of.
#ifndef JAXKERNELS_ROWS_CUDA_LEAF_TREE_CUH_
#define JAXKERNELS_ROWS_CUDA_LEAF_TREE_CUH_

#include "rows/cuda/leaf.cuh"

namespace jaxkernels {

// The statistics of a row from those of its `count` leaves, by a warp; valid in all lanes. Lane l
// takes leaves l, l + 32, ..., in this order, and then the lanes meet in one tree.
template <typename Op, typename Found>
__device__ RowStatistics<Op> StatisticsOfRow(const Found* leaves, int count) {
  using C = typename Op::C;
  LaneGroup<C, kWarpSize, 1> warp;
  auto found = RowStatistics<Op>::Empty();
  const int lane = threadIdx.x % kWarpSize;
  if constexpr (Op::kUsesMax) {
    for (int i = lane; i < count; i += kWarpSize) found.max = Max(found.max, leaves[i].max);
    found.max = warp.template AllReduce<MaxReduction<C>>(found.max);
  }
  const C reference = found.Reference(found.max);
  for (int i = lane; i < count; i += kWarpSize) {
    RowStatistics<Op> leaf(leaves[i]);
    leaf.MakeRelativeTo(reference);
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) found.sum[s] += leaf.sum[s];
  }
  AllReduceSums(warp, found.sum);
  return found;
}

// The constants of a row, for the results of one of its leaves and for those of the end of the leaf
// before, which may lie in its first pack.
template <typename Op>
struct LeafConstants {
  using C = typename Op::C;
  using Row = typename Op::Row;
  static constexpr int kSize = Pack<typename Op::Storage>::kSize;

  Row own, before;

  // `leaf` of the statistics `leaves` of a row.
  template <typename Found>
  __device__ LeafConstants(const RowArgs<Op>& args, int64_t row, const RowStatistics<Op>& of_row,
                           const Found* leaves, int leaf)
      : own(Of(args, row, of_row, leaves[leaf].max)), before(own) {
    if constexpr (kKeepsLeafTerms<Op>) {
      if (leaf > 0) before = Of(args, row, of_row, leaves[leaf - 1].max);
    }
  }

  // The results of a pack, or of the terms in its place.
  __device__ void Finish(const Op& op, const InputPacks<Op>& pack, LeafPlace place,
                         LeafShift shift, bool is_term, C (&result)[kSize]) const {
    if (kKeepsLeafTerms<Op> && is_term) {
      if constexpr (kKeepsLeafTerms<Op>) {
        FinishTerms(op, pack.input[0].element, own, result);
      }
    } else if (kKeepsLeafTerms<Op> && place == LeafPlace::kFirst && shift.Any()) {
      C value[kSize][Op::kInputs];
      Widen<Op>(pack, value);
      const int lane = threadIdx.x % kWarpSize;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const bool is_own = lane > shift.packs || (lane == shift.packs && j >= shift.elements);
        result[j] = op.Finish(value[j], is_own ? own : before);
      }
    } else {
      FinishPacks(op, pack, own, result);
    }
  }

 private:
  // exp(x - max) / sum == exp(x - m) / (sum exp(max - m)), where m is the maximum of the leaf.
  __device__ static Row Of(const RowArgs<Op>& args, int64_t row, RowStatistics<Op> of_row,
                           C max_of_leaf) {
    C reference = of_row.max;
    if constexpr (Op::kUsesMax) reference = Op::Reference(of_row.max);
    if constexpr (kKeepsLeafTerms<Op>) {
      C& sum = of_row.sum[0];
      if (max_of_leaf == -kInfinity<C>) {
        sum *= 0;  // as its terms are, and NaN if the row is
      } else {
        of_row.MakeRelativeTo(of_row.Reference(max_of_leaf));
        if (sum == kInfinity<C>) sum = 0;  // the leaf is far below the rest: its results are zero
      }
      sum += reference - reference;  // NaN if it is infinite
      of_row.max = of_row.Reference(max_of_leaf);
    } else {
      of_row.max = reference;
    }
    return RowOf(args, row, of_row);
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_LEAF_TREE_CUH_
