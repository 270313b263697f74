// Maximum and sums of a row, computed in one pass, or combined from parts with different maxima
// (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867).
#pragma once

#include "rows/cuda/row_steps.cuh"

namespace jaxkernels {

// The running maximum of a sequence, and the sums of its terms relative to that maximum. Rests of
// compensated sums arise when warps, blocks or leaves are combined. Functions that add elements or
// merge require zero rests, unless they say that they keep rests.
template <typename Op>
struct RowStatistics : Op::Found {
  using T = typename Op::Storage;
  using C = typename Op::C;
  using Found = typename Op::Found;
  using Found::max;
  using Found::sum;

  RowStatistics() = default;
  __device__ explicit RowStatistics(const Found& found) : Found(found) {}

  // The statistics of an empty sequence.
  __device__ static RowStatistics Empty() {
    RowStatistics none;
    none.max = Op::kUsesMax ? -kInfinity<C> : C(0);
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) none.SetSum(s, 0);
    return none;
  }

  // The shift of the terms. While every element is -inf it is 0: the terms vanish, and inf - inf
  // never makes a NaN.
  __device__ static C Reference(C max) {
    if constexpr (Op::kUsesMax) {
      return max == -kInfinity<C> ? C(0) : Op::Reference(max);
    } else {
      return max;
    }
  }

  template <int kCount>
  __device__ void Add(const Op& op, InputPacks<Op> (&pack)[kCount]) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if constexpr (Op::kUsesMax) RaiseMax(ScaledMax(op, MaxOfPacks(op, pack[u])));
      C term[Pack<T>::kSize];
      AddPacks(op, SingleTerms(), pack[u], Reference(max), term, sum);
    }
  }

  // Makes the sums relative to `reference` instead of Reference(max). Keeps rests. Sums become
  // infinite if the factor overflows; NaN sums stay NaN.
  __device__ void MakeRelativeTo(C reference) {
    if constexpr (Op::kUsesMax) {
      const bool is_large = max - reference > kLargestExponent<C>;
      const C factor = is_large ? kInfinity<C> : PreciseExpDifference<T>(max, reference);
      if constexpr (Op::kKeepsRest) {
#pragma unroll
        for (int s = 0; s < Op::kSums; ++s) this->SetSum(s, this->ExactSum(s) * factor);
      } else {
        Op::Rescale(sum, factor, max - reference);
      }
    }
  }

  // Merges the statistics of other elements.
  __device__ void Merge(RowStatistics other) {
    const C larger = Max(max, other.max);
    MakeRelativeTo(Reference(larger));
    other.MakeRelativeTo(Reference(larger));
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) sum[s] = RoundedSum(sum[s], other.sum[s]);
    max = larger;
  }

  // Merges the statistics of all lanes of a group.
  template <typename Group>
  __device__ void MergeOver(const Op& op, Group& group) {
    C of_group = max;
    if constexpr (Op::kUsesMax) of_group = AllReduce<MaxReduction<C>>(group, max);
    MakeRelativeTo(Reference(of_group));
    AllReduceSums(op, group, *this);
    max = of_group;
  }

 private:
  __device__ void RaiseMax(C new_max) {
    if (!(new_max > max)) return;
    Op::Rescale(sum, PreciseExpDifference<T>(max, new_max), max - new_max);
    max = new_max;
  }
};

}  // namespace jaxkernels
