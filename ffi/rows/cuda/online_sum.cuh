// The maximum and the sum of a row, found together, or from parts that do not know each other's
// maximum (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv
// 1805.02867).
#ifndef JAXKERNELS_ROWS_CUDA_ONLINE_SUM_CUH_
#define JAXKERNELS_ROWS_CUDA_ONLINE_SUM_CUH_

#include "rows/cuda/row_steps.cuh"

namespace jaxkernels {

// The running maximum of a sequence and the sum of its terms relative to that maximum.
template <typename Op>
struct OnlineSum {
  using T = typename Op::Storage;
  using C = typename Op::C;
  C max, sum;  // of nothing: Op::Fill() and 0

  // While every element is -inf the terms are taken relative to 0: they vanish, and no inf - inf
  // makes a NaN.
  __device__ static C Reference(C max) { return max == -kInfinity<C> ? C(0) : max; }

  template <int kCount>
  __device__ void Add(const Op& op, const InputPacks<Op> (&pack)[kCount]) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if constexpr (Op::kUsesMax) RaiseMax(MaxOfPacks(op, pack[u]));
      C term[Pack<T>::kSize];
      sum += SumOfPacks(op, pack[u], Reference(max), term);
    }
  }

  // The sum of the terms relative to `reference` instead of Reference(max); infinite where that is
  // too large, and NaN if the sum is.
  __device__ C SumRelativeTo(C reference) const {
    if constexpr (Op::kUsesMax) {
      const bool is_large = max - reference > kLargestExponent<C>;
      return sum * (is_large ? kInfinity<C> : ExpDifference<T>(max, reference));
    } else {
      return sum;
    }
  }

  // Those of all lanes of a group.
  template <typename Group>
  __device__ void Meet(Group& group) {
    C of_group = max;
    if constexpr (Op::kUsesMax) of_group = group.template AllReduce<MaxReduction<C>>(max);
    sum = group.template AllReduce<SumReduction<C>>(SumRelativeTo(Reference(of_group)));
    max = of_group;
  }

 private:
  __device__ void RaiseMax(C new_max) {
    if (!(new_max > max)) return;
    sum *= ExpDifference<T>(max, new_max);
    max = new_max;
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ONLINE_SUM_CUH_
