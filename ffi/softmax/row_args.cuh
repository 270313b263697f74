// What the tiers share: a kernel's arguments, and a handful of elements seen through a row
// operation.
#ifndef JAXKERNELS_SOFTMAX_ROW_ARGS_CUH_
#define JAXKERNELS_SOFTMAX_ROW_ARGS_CUH_

#include "common/pack.cuh"
#include "common/reduce.cuh"

namespace jaxkernels {

template <typename Op>
struct RowArgs {
  const typename Op::Storage* in[Op::kInputs];
  typename Op::Storage* out;
  int64_t rows, cols;
  int kept_packs;  // of each input, in shared memory; block_uncached only
};

// One pack of each input.
template <typename Op>
using InputPacks = Pack<typename Op::Storage>[Op::kInputs];

template <typename Op, bool kAligned>
__device__ void LoadPacks(InputPacks<Op>& pack, const RowArgs<Op>& args,
                          const RowWindow<typename Op::Storage, kAligned>& window, int index) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) LoadPack(pack[i], args.in[i], window, index);
}

// Replaces what does not belong to the row by Op::Fill(), which all storage types can represent.
template <typename Op, bool kAligned>
__device__ void MaskPacks(InputPacks<Op>& pack, const RowArgs<Op>& args,
                          const RowWindow<typename Op::Storage, kAligned>& window, int index) {
  const auto fill = static_cast<typename Op::Storage>(Op::Fill());
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) MaskPack(pack[i], args.in[i], window, index, fill);
}

template <typename Op>
__device__ void FillPacks(InputPacks<Op>& pack) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
#pragma unroll
    for (auto& element : pack[i].element) element = static_cast<typename Op::Storage>(Op::Fill());
  }
}

template <typename Op>
__device__ void ForgetPacks(InputPacks<Op>& pack) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) Forget(pack[i]);
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
      Widen2(&pack[i].element[j], pair);
      value[j][i] = pair[0], value[j + 1][i] = pair[1];
    }
  }
}

// The three steps of a row operation, on kSize elements: value[j][i] is element j of input i.
template <typename Op, typename C, int kSize>
__device__ C MaxOf(const C (&value)[kSize][Op::kInputs]) {
  C max = value[0][0];
#pragma unroll
  for (int j = 1; j < kSize; ++j) max = Max(max, value[j][0]);
  return max;
}

// Leaves the terms, as Op::FinishTerm takes them, and returns their sum, added pairwise.
template <typename Op, typename C, int kSize>
__device__ C SumOf(const C (&value)[kSize][Op::kInputs], C max, C (&term)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) term[j] = Op::Term(value[j], max);
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
__device__ void Finish(const C (&value)[kSize][Op::kInputs], const typename Op::Row& row,
                       C (&result)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) result[j] = Op::Finish(value[j], row);
}

template <typename Op, typename C, int kSize>
__device__ void FinishTerms(const C (&term)[kSize], const typename Op::Row& row,
                            C (&result)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) result[j] = Op::FinishTerm(term[j], row);
}

// The same on packs; their maximum is MaxOfPack of the first input.
template <typename Op, typename C>
__device__ C SumOfPacks(const InputPacks<Op>& pack, C max,
                        C (&term)[Pack<typename Op::Storage>::kSize]) {
  C value[Pack<typename Op::Storage>::kSize][Op::kInputs];
  Widen<Op>(pack, value);
  return SumOf<Op>(value, max, term);
}

template <typename Op, typename C>
__device__ void FinishPacks(const InputPacks<Op>& pack, const typename Op::Row& row,
                            C (&result)[Pack<typename Op::Storage>::kSize]) {
  C value[Pack<typename Op::Storage>::kSize][Op::kInputs];
  Widen<Op>(pack, value);
  Finish<Op>(value, row, result);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_ROW_ARGS_CUH_
