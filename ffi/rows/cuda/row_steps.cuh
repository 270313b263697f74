// Steps of a row operation on packs and on a few elements: maximum, terms and their sums, results.
#pragma once

#include "rows/cuda/row_packs.cuh"
#include "rows/cuda/term_choice.cuh"

namespace jaxkernels {

template <typename Op>
__device__ void ForgetPacks(InputPacks<Op>& pack) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) Forget(pack.input[i]);
}

// Calls body with a pointer to the numbers of all columns, in their dtype.
template <typename Op, typename Body>
__device__ void WithColumn(const Op& op, Body body) {
  using C = typename Op::C;
  using T = typename Op::Storage;
  if (std::is_same_v<C, T> || op.column.wide) {
    body(static_cast<const C*>(op.column.data));
  } else {
    body(static_cast<const T*>(op.column.data));
  }
}

// Loads the numbers of a pack's columns; 0 outside of the row.
template <typename Op, typename C, int kSize>
__device__ void WidenColumn(const Op& op, const typename Op::ColumnPlace& place,
                            C (&value)[kSize][kValues<Op>]) {
  WithColumn(op, [&](const auto* numbers) {
    if (!place.whole) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int index = place.first + j;
        const bool is_of_row = static_cast<unsigned>(index) < static_cast<unsigned>(op.cols);
        value[j][Op::kInputs] = is_of_row ? static_cast<C>(numbers[index]) : C(0);
      }
      return;
    }
    using Packed = Pack<std::decay_t<decltype(*numbers)>>;
    const bool is_of_row = static_cast<unsigned>(place.first) < static_cast<unsigned>(op.cols);
#pragma unroll
    for (int i = 0; i < kSize; i += Packed::kSize) {
      uint4 words = {};
      if (is_of_row) words = *reinterpret_cast<const uint4*>(numbers + place.first + i);
      const auto& pack = reinterpret_cast<const Packed&>(words);
#pragma unroll
      for (int j = 0; j < Packed::kSize; ++j) {
        value[i + j][Op::kInputs] = static_cast<C>(pack.element[j]);
      }
    }
  });
}

template <typename Op>
__device__ void Widen(
    const Op& op, const InputPacks<Op>& pack,
    ComputeType<typename Op::Storage> (&value)[Pack<typename Op::Storage>::kSize][kValues<Op>]) {
  if constexpr (Op::kTakesColumn) WidenColumn(op, pack.column, value);
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

// Widen and Scale. Packs with -inf are rare: one test of a pack replaces one of each element.
template <typename Op>
__device__ void WidenAndScale(
    const Op& op, const InputPacks<Op>& pack,
    ComputeType<typename Op::Storage> (&value)[Pack<typename Op::Storage>::kSize][kValues<Op>]) {
  Widen(op, pack, value);
  if constexpr (Op::kCaps) {
#pragma unroll
    for (auto& [x] : value) x = op.scale.Capped(x);
    if (!HasMinusInfinity(pack.input[0])) return;
    ComputeType<typename Op::Storage> given[Pack<typename Op::Storage>::kSize][kValues<Op>];
    Widen(op, pack, given);
#pragma unroll
    for (int j = 0; j < Pack<typename Op::Storage>::kSize; ++j) {
      if (given[j][0] == -kInfinity<typename Op::C>) value[j][0] = given[j][0];
    }
  } else if constexpr (Op::kTakesScales) {
    Scale(op, value);
  }
}

// The steps on kSize elements; value[j][i] is element j of input i, or the number of its column.
template <typename Op, typename C, int kSize>
__device__ C MaxOf(const Op& op, const C (&value)[kSize][kValues<Op>]) {
  C max = op.Value(value[0]);
#pragma unroll
  for (int j = 1; j < kSize; ++j) max = Max(max, op.Value(value[j]));
  return max;
}

// Computes the terms, as Op::FinishTerm takes them, and adds them to the sums, with the same bits
// in every kernel but half_losses.cuh. has_max: whether an element may equal `max`.
template <typename Op, typename C, int kSize>
__device__ void AddTerms(const Op& op, const C (&value)[kSize][kValues<Op>], C max, bool has_max,
                         C (&term)[kSize], C (&sum)[Op::kSums]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) term[j] = op.Term(value[j], max);
  if constexpr (Op::kSums > 2) op.AddMore(value, max, has_max, term, sum);
  if constexpr (Op::kSums == 2) {
    C second[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      second[j] = op.SecondTerm(term[j], value[j], term[j] == C(1));
    }
    sum[1] = RoundedSum(sum[1], SumPairwise(second));
  }
  sum[0] = RoundedSum(sum[0], SumPairwise(term));
}

// All-reduction of the sums over a group. Sums across warps are compensated if the operation asks
// for it; sums across lanes are not.
template <typename Op, typename Group>
__device__ void AllReduceSums(const Op& op, Group& group, typename Op::Found& found) {
  using OfLanes = SumReduction<typename Op::C>;
  using Exact = typename Op::Found::Exact;
  if constexpr (Op::kSums > 2) {
    if (!op.all_sums) {  // the other sums are not used
      typename Op::C first[2] = {found.sum[0], found.sum[1]};
      group.template AllReduce<OfLanes>(first);
      found.sum[0] = first[0], found.sum[1] = first[1];
      return;
    }
  }
  Exact sum[Op::kSums];
  if constexpr (Group::kMeetsInTwoSteps) {
    group.template AllReduce<OfLanes, SumReduction<Exact>>(found.sum, sum);
  } else {
    group.template AllReduce<OfLanes>(found.sum);
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) sum[s] = found.sum[s];
  }
  found.SetSums(sum);
}

// As AllReduceSums over a block whose threads have kClasses accumulators each. Only warps with
// `wants` get the result (BlockReducer::ReduceClasses). Returns `wants`.
template <typename Op, typename Block, typename C, int kClasses>
__device__ bool ReduceClassSums(const Op& op, Block& block, C (&sum)[kClasses][Op::kSums],
                                typename Op::Found& found, bool wants) {
  using Exact = typename Op::Found::Exact;
  const auto meet = [&](auto& of_classes, auto& total) {
    return block.template ReduceClasses<SumReduction<C>, SumReduction<Exact>>(of_classes, total,
                                                                              wants);
  };
  if constexpr (Op::kSums > 2) {
    if (!op.all_sums) {
      C first[kClasses][2];
      Exact total[2];
#pragma unroll
      for (int c = 0; c < kClasses; ++c) first[c][0] = sum[c][0], first[c][1] = sum[c][1];
      if (!meet(first, total)) return false;
      found.SetSum(0, total[0]), found.SetSum(1, total[1]);
      return true;
    }
  }
  Exact total[Op::kSums];
  if (!meet(sum, total)) return false;
  found.SetSums(total);
  return true;
}

// As ReduceClassSums, with the result in all threads.
template <typename Op, typename Block, typename C, int kClasses>
__device__ void AllReduceClassSums(const Op& op, Block& block, C (&sum)[kClasses][Op::kSums],
                                   typename Op::Found& found) {
  ReduceClassSums(op, block, sum, found, true);
}

// All-reduction of sums that already have rests; the rests are added too.
template <typename Group, typename Found>
__device__ void AllReduceExactSums(Group& group, Found& found) {
  using Exact = typename Found::Exact;
  Exact sum[Found::kSums];
#pragma unroll
  for (int s = 0; s < Found::kSums; ++s) sum[s] = found.ExactSum(s);
  group.template AllReduce<SumReduction<Exact>>(sum);
  found.SetSums(sum);
}

// The constants of a row, from its statistics and per-row inputs.
template <typename Op>
__device__ typename Op::Row RowOf(const typename Op::Found& found, const GivenRow<Op>& given) {
  return Op::MakeRow(found, given);
}

// `row`: Op::Row, or the part of it that Op::Finish takes.
template <typename Op, typename Row, typename C, int kSize>
__device__ void Finish(const Op& op, const C (&value)[kSize][kValues<Op>], const Row& row,
                       C (&result)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) result[j] = op.Finish(value[j], row);
}

// The result of hidden elements.
template <typename Op, typename C, int kSize>
__device__ void FinishHidden(const typename Op::Row& row, C (&result)[kSize]) {
#pragma unroll
  for (C& element : result) element = Op::Hidden(row);
}

template <typename Op, typename C, int kSize>
__device__ void FinishTerms(const Op& op, const C (&term)[kSize], const typename Op::Row& row,
                            C (&result)[kSize]) {
  static_assert(Op::kInputs == 1 || Op::kHides, "FinishTerm gets no second input");
#pragma unroll
  for (int j = 0; j < kSize; ++j) result[j] = op.FinishTerm(term[j], C(0), row);
}

// The maximum of a pack, before ScaledMax. A single input is compared in its storage type, since
// scaling and Op::Value are non-decreasing.
template <typename Op>
__device__ typename Op::C MaxOfPacks(const Op& op, const InputPacks<Op>& pack) {
  if constexpr (Op::kInputs == 1) {
    return MaxOfPack(pack.input[0]);
  } else {
    typename Op::C value[Pack<typename Op::Storage>::kSize][kValues<Op>];
    Widen(op, pack, value);
    return MaxOf(op, value);
  }
}

// The maximum of a thread's packs, given the largest of their MaxOfPacks. It is scaled once per
// thread: a soft cap takes longer than the comparisons of a pack.
template <typename Op, typename C>
__device__ C ScaledMax(const Op& op, C largest) {
  if constexpr (Op::kInputs > 1) {
    return largest;  // MaxOf has taken Op::Value
  } else {
    C value[1][1] = {{largest}};
    if constexpr (Op::kTakesScales) Scale(op, value);
    return op.Value(value[0]);
  }
}

// The maximum of a group's elements, scaled, given the largest of a thread's MaxOfPacks. With
// CappedTerms, `largest` becomes that of the group.
template <typename Op, typename Group, typename C>
__device__ C ReduceMax(const Op& op, Group& group, C& largest) {
  if constexpr (kMayShareReciprocals<Op>) {
    largest = AllReduce<MaxReduction<C>>(group, largest);
    return ScaledMax(op, largest);
  } else {
    return AllReduce<MaxReduction<C>>(group, ScaledMax(op, largest));
  }
}

// Whether an element of a pack equals `max`, given its scaled elements. Capped elements are
// compared as computed; others in their storage type, two at a time in 16 bits.
template <typename Op, typename C, int kSize>
__device__ bool HasMax(const Op& op, const InputPacks<Op>& pack,
                       const C (&value)[kSize][kValues<Op>], C max) {
  if constexpr (Op::kCaps) {
    return MaxOf(op, value) == max;
  } else {
    return ScaledMax(op, MaxOfPacks(op, pack)) == max;
  }
}

// counts_max: false if the thread is known to have no maximum; used by operations that count
// maxima. The test for the maximum is per pack. A test per warp, with a separate loop for warps
// without the maximum, was slower (ms):
// H200 bf16 loss with gradient 8371 x 128256: per pack 1.26, per warp 1.34
// `terms` comes from WithTerms. CappedTerms add to the first two sums only.
template <typename Op, typename Terms, typename C>
__device__ void AddPacks(const Op& op, const Terms& terms, InputPacks<Op>& pack, C max,
                         C (&term)[Pack<typename Op::Storage>::kSize], C (&sum)[Op::kSums],
                         bool counts_max = true) {
  if constexpr (kMayShareReciprocals<Op>) ForgetPacks<Op>(pack);
  if constexpr (!std::is_same_v<Terms, SingleTerms>) {
    terms.Compute(pack.input[0], term);
    if (counts_max) terms.CountMax(pack.input[0], term, sum[1]);
    sum[0] = RoundedSum(sum[0], SumPairwise(term));
  } else {
    C value[Pack<typename Op::Storage>::kSize][kValues<Op>];
    WidenAndScale(op, pack, value);
    bool has_max = counts_max;
    if constexpr (Op::kSums > 2) has_max = counts_max && HasMax(op, pack, value, max);
    AddTerms(op, value, max, has_max, term, sum);
  }
}

// Replaces the results of columns in row.other, from `column` on and `stride` apart.
template <typename Row, typename C, int kSize>
__device__ void ReplaceOthers(const Row& row, int column, int stride, C (&result)[kSize]) {
  if (row.other.begin >= column + kSize * stride || row.other.end <= column) return;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    if (row.other.Has(column + j * stride)) result[j] = row.other.result;
  }
}

// Multiplies derivatives with respect to capped logits by the derivative of the cap. (The row
// constants contain the factor of the temperature.)
template <typename Op, typename C, int kSize>
__device__ void Unscale(const Op& op, const C (&value)[kSize][1], C (&result)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    result[j] *= op.scale.SlopeAt(value[j][0]);
  }
}

// The results of pack `index` of a row. `terms` comes from WithTermsOf.
template <typename Op, typename Terms, bool kAligned, typename Row, typename C>
__device__ void FinishPacks(const Op& op, const Terms& terms, const RowView<Op, kAligned>& view,
                            InputPacks<Op>& pack, const Row& row, int index,
                            C (&result)[Pack<typename Op::Storage>::kSize]) {
  if constexpr (kMayShareReciprocals<Op>) ForgetPacks<Op>(pack);
  if constexpr (!std::is_same_v<Terms, SingleTerms>) {
    terms.Differentiate(pack.input[0], row.factor, result);
  } else {
    C value[Pack<typename Op::Storage>::kSize][kValues<Op>];
    WidenAndScale(op, pack, value);
    Finish(op, value, row, result);
    if constexpr (Op::kCaps) Unscale(op, value, result);
  }
  if constexpr (requires { row.other; }) ReplaceOthers(row, view.Column(index), 1, result);
}

// Stores the results of pack `index` in args.result_dtype. Time relative to one kernel per result
// dtype, which makes 717 float32 kernels instead of 625 (unchanged kernels vary as much):
// H200 16 to 16384 cols, masked or not (2026-11): 0.91 to 1.12, most within 5 percent
template <typename Op, bool kAligned, typename C, int kSize>
__device__ void StoreResults(const RowArgs<Op>& args, const RowView<Op, kAligned>& view, int index,
                             const C (&result)[kSize]) {
  if constexpr (kMayNarrow<Op>) {
    if (args.result_dtype == DType::kBFloat16) {
      return StorePack(static_cast<__nv_bfloat16*>(args.out), view, index, result);
    }
    if (args.result_dtype == DType::kFloat16) {
      return StorePack(static_cast<__half*>(args.out), view, index, result);
    }
  }
  StorePack(static_cast<typename Op::Storage*>(args.out), view, index, result);
}

// Stores the result of the label's column only.
// Requires: the row is not left out.
template <typename Op, bool kAligned>
__device__ void StoreAtLabel(const RowArgs<Op>& args, const RowView<Op, kAligned>& view,
                             const typename Op::LedRow& row, typename Op::C slope) {
  using T = typename Op::Storage;
  const int64_t column = row.label + view.head;
  static_cast<T*>(args.out)[(view.first + view.lead) * Pack<T>::kSize + column] =
      static_cast<T>(row.AtLabel() * slope);
}

}  // namespace jaxkernels
