// The maximum and the sum of a row that is read once, found together (Milakov and Gimelshein 2018,
// "Online normalizer calculation for softmax", arXiv 1805.02867).
#ifndef JAXKERNELS_SOFTMAX_ONLINE_SUM_CUH_
#define JAXKERNELS_SOFTMAX_ONLINE_SUM_CUH_

#include "softmax/row_steps.cuh"

namespace jaxkernels {

// The running maximum of a sequence and the sum of its terms relative to that maximum.
template <typename Op>
struct OnlineSum {
  using T = typename Op::Storage;
  using C = typename Op::C;
  C max = Op::Fill();
  C sum = 0;

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

  // Those of all lanes of a group.
  template <typename Group>
  __device__ void Meet(Group& group) {
    if constexpr (Op::kUsesMax) {
      const C own = max;
      max = group.template AllReduce<MaxReduction<C>>(own);
      sum *= ExpDifference<T>(own, Reference(max));
    }
    sum = group.template AllReduce<SumReduction<C>>(sum);
  }

 private:
  __device__ void RaiseMax(C new_max) {
    if (!(new_max > max)) return;
    sum *= ExpDifference<T>(max, new_max);
    max = new_max;
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_ONLINE_SUM_CUH_
