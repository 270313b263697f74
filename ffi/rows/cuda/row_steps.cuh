// The steps of a row operation on packs and on a handful of elements: maximum, terms and their sum,
// results.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_STEPS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_STEPS_CUH_

#include "rows/cuda/row_args.cuh"

namespace jaxkernels {

template <typename Op>
__device__ void ForgetPacks(InputPacks<Op>& pack) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) Forget(pack.input[i]);
}

template <typename Op>
__device__ void Widen(
    const InputPacks<Op>& pack,
    ComputeType<typename Op::Storage> (&value)[Pack<typename Op::Storage>::kSize][Op::kInputs]) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
#pragma unroll
    for (int j = 0; j < Pack<typename Op::Storage>::kSize; j += 2) {
      ComputeType<typename Op::Storage> pair[2];
      Widen2(&pack.input[i].element[j], pair);
      value[j][i] = pair[0], value[j + 1][i] = pair[1];
    }
  }
}

// The three steps of a row operation, on kSize elements: value[j][i] is element j of input i.
template <typename Op, typename C, int kSize>
__device__ C MaxOf(const Op& op, const C (&value)[kSize][Op::kInputs]) {
  C max = op.Value(value[0]);
#pragma unroll
  for (int j = 1; j < kSize; ++j) max = Max(max, op.Value(value[j]));
  return max;
}

// Leaves the terms, as Op::FinishTerm takes them, and returns their sum, added pairwise.
template <typename Op, typename C, int kSize>
__device__ C SumOf(const Op& op, const C (&value)[kSize][Op::kInputs], C max, C (&term)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) term[j] = op.Term(value[j], max);
  C sum[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) sum[j] = term[j];
#pragma unroll
  for (int width = kSize / 2; width > 0; width /= 2) {
#pragma unroll
    for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

template <typename Op, typename C, int kSize>
__device__ void Finish(const Op& op, const C (&value)[kSize][Op::kInputs],
                       const typename Op::Row& row, C (&result)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) result[j] = op.Finish(value[j], row);
}

// The result of elements that are hidden.
template <typename Op, typename C, int kSize>
__device__ void FinishHidden(const typename Op::Row& row, C (&result)[kSize]) {
#pragma unroll
  for (C& element : result) element = Op::Hidden(row);
}

template <typename Op, typename C, int kSize>
__device__ void FinishTerms(const Op& op, const C (&term)[kSize], const typename Op::Row& row,
                            C (&result)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) result[j] = op.FinishTerm(term[j], row);
}

// The same on packs. A single input is compared in its storage type, since its value rises with it.
template <typename Op>
__device__ typename Op::C MaxOfPacks(const Op& op, const InputPacks<Op>& pack) {
  if constexpr (Op::kInputs == 1) {
    const typename Op::C largest[1] = {MaxOfPack(pack.input[0])};
    return op.Value(largest);
  } else {
    typename Op::C value[Pack<typename Op::Storage>::kSize][Op::kInputs];
    Widen<Op>(pack, value);
    return MaxOf(op, value);
  }
}

template <typename Op, typename C>
__device__ C SumOfPacks(const Op& op, const InputPacks<Op>& pack, C max,
                        C (&term)[Pack<typename Op::Storage>::kSize]) {
  C value[Pack<typename Op::Storage>::kSize][Op::kInputs];
  Widen<Op>(pack, value);
  return SumOf(op, value, max, term);
}

template <typename Op, typename C>
__device__ void FinishPacks(const Op& op, const InputPacks<Op>& pack, const typename Op::Row& row,
                            C (&result)[Pack<typename Op::Storage>::kSize]) {
  C value[Pack<typename Op::Storage>::kSize][Op::kInputs];
  Widen<Op>(pack, value);
  Finish(op, value, row, result);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_STEPS_CUH_
