// Maps a plan to a template instantiation.
//
// The table of warp kernels is generated from kWarpShapes, from which plans choose too.
// IsWarpShapeTaken must admit every shape that a plan can choose: other kernels are null.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "rows/cuda/launch.h"
#include "rows/cuda/row_ops_losses.cuh"
#include "rows/cuda/row_ops_masked.cuh"
#include "rows/cuda/tier_block_uncached.cuh"
#include "rows/cuda/tier_few_rows.cuh"
#include "rows/cuda/tier_one_read.cuh"
#include "rows/cuda/tier_registers.cuh"
#include "rows/cuda/tier_smem.cuh"
#include "rows/cuda/tier_stream.cuh"
#include "rows/cuda/tier_warp_staged.cuh"
#include "rows/ops/all.h"

namespace jaxkernels {

template <typename Op>
using RowKernel = void (*)(RowArgs<Op>);

// Plans do not know kMayAlign. Without it, an unaligned kernel serves the layouts of aligned rows.
template <typename Op, int kShape, bool kAligned>
constexpr RowKernel<Op> WarpKernelOf() {
  constexpr DType kDType = kDTypeOf<typename Op::Storage>;
  constexpr WarpShape shape = WarpShapeOf(kShape, TraitsOf(Op::kOperation), kDType, kAligned);
  constexpr bool kIsAligned = kAligned && Op::kMayAlign;
  if constexpr (IsWarpShapeTaken(kShape, Op::kOperation, kDType, kAligned)) {
    return &WarpTierKernel<Op, shape.lanes, shape.packs_per_lane, shape.rows_per_access,
                           kIsAligned>;
  } else {
    return nullptr;  // plans never choose it
  }
}

template <typename Op, bool kAligned, int... kShapes>
RowKernel<Op> FindWarpKernel(int shape, std::integer_sequence<int, kShapes...>) {
  static constexpr std::array<RowKernel<Op>, sizeof...(kShapes)> kKernels = {
      WarpKernelOf<Op, kShapes, kAligned>()...};
  return kKernels[shape];
}

template <typename Op, int... kPairs>
RowKernel<Op> FindStagedKernel(int elements_per_lane, std::integer_sequence<int, kPairs...>) {
  static constexpr std::array<RowKernel<Op>, sizeof...(kPairs)> kKernels = {
      &WarpStagedTierKernel<Op, 2 * (kPairs + 1)>...};
  return kKernels[elements_per_lane / 2 - 1];
}

// Kernels of `block_smem` and `cluster`.
template <typename Op>
RowKernel<Op> FindSharedKernel(const RowPlan& plan) {
  if constexpr (HasFewRowsLayout(Op::kOperation, kDTypeOf<typename Op::Storage>)) {
    if (plan.few_rows)
      return plan.aligned ? &FewRowsKernel<Op, Op::kMayAlign> : &FewRowsKernel<Op, false>;
  }
  return plan.aligned ? &SmemTierKernel<Op, Op::kMayAlign> : &SmemTierKernel<Op, false>;
}

template <typename Op>
RowKernel<Op> FindKernel(const RowPlan& plan) {
  switch (plan.tier) {
    case Tier::kWarp: {
      constexpr auto kShapes = std::make_integer_sequence<int, kWarpShapeCount>();
      if constexpr (MayStage(TraitsOf(Op::kOperation))) {
        constexpr int kPairs = MostStagedElements(kDTypeOf<typename Op::Storage>) / 2;
        if (plan.staged) {
          return FindStagedKernel<Op>(plan.elements_per_lane,
                                      std::make_integer_sequence<int, kPairs>());
        }
      }
      return plan.aligned ? FindWarpKernel<Op, true>(plan.warp_shape, kShapes)
                          : FindWarpKernel<Op, false>(plan.warp_shape, kShapes);
    }
    case Tier::kBlock:
      return plan.aligned ? &BlockTierKernel<Op, Op::kMayAlign> : &BlockTierKernel<Op, false>;
    case Tier::kBlockSmem:
    case Tier::kCluster:
      return FindSharedKernel<Op>(plan);
    default:
      if constexpr (IsReadInLeaves(Op::kOperation)) {
        return &OneReadKernel<Op>;
      } else {
        return plan.aligned ? &BlockUncachedTierKernel<Op, Op::kMayAlign>
                            : &BlockUncachedTierKernel<Op, false>;
      }
  }
}

// Returns null for a part that read_call.cc rejects.
template <typename Op, bool kAligned>
const void* FindPart(const RowPlan& plan) {
  constexpr OperationTraits kTraits = TraitsOf(Op::kOperation);
  if constexpr (HasPart(kTraits, Part::kFinish)) {
    if (plan.part == Part::kFinish) {
      return reinterpret_cast<const void*>(&RowFinishKernel<Op, kAligned>);
    }
  }
  if constexpr (HasPart(kTraits, Part::kStatistics)) {
    if (plan.part != Part::kStatistics) return nullptr;
    switch (plan.lanes) {
      case kStreamLanes:
        return reinterpret_cast<const void*>(
            &RowStatisticsKernel<Op, LaneGroup<kStreamLanes, 1>, kAligned>);
      case kWarpSize:
        return reinterpret_cast<const void*>(
            &RowStatisticsKernel<Op, LaneGroup<kWarpSize, 1>, kAligned>);
      default:
        return reinterpret_cast<const void*>(&RowStatisticsKernel<Op, BlockGroup<Op>, kAligned>);
    }
  }
  return nullptr;
}

template <typename Op>
const void* FindFunction(const RowPlan& plan) {
  if constexpr (!Reduces(Op::kOperation)) {
    return plan.aligned ? reinterpret_cast<const void*>(&RowFinishKernel<Op, Op::kMayAlign>)
                        : reinterpret_cast<const void*>(&RowFinishKernel<Op, false>);
  } else if constexpr (Op::kOnlyLong && IsReadInLeaves(Op::kOperation)) {
    return reinterpret_cast<const void*>(&OneReadKernel<Op>);
  } else if constexpr (Op::kOnlyLong) {
    return reinterpret_cast<const void*>(FindSharedKernel<Op>(plan));
  } else {
    if (plan.part == Part::kWhole) return reinterpret_cast<const void*>(FindKernel<Op>(plan));
    return plan.aligned ? FindPart<Op, Op::kMayAlign>(plan) : FindPart<Op, false>(plan);
  }
}

template <typename Op>
cudaError_t LaunchRowOp(const RowCall& call, const RowPlan& plan, cudaStream_t stream) {
  static_assert(kHasMask<Op> == (ScoresMayHaveMask(Op::kOperation) || kMasksLogits<Op>));
  using T = typename Op::Storage;
  const RowArrays& arrays = call.arrays;
  RowArgs<Op> args = {};
  for (int i = 0; i < Op::kInputs; ++i) {
    args.in[i] = static_cast<const T*>(arrays.in[i]) - plan.offset;
  }
  // `out` is null if the results are statistics or row scalars.
  if (arrays.out != nullptr) {
    const auto skipped = plan.offset * ByteWidth(call.result_dtype);
    args.out = static_cast<char*>(arrays.out) - skipped;
  }
  args.result_dtype = call.result_dtype;
  args.offset = plan.offset;
  args.rows = arrays.rows;
  args.cols = arrays.cols;
  args.kept_packs = plan.kept_packs;
  args.lanes = plan.lanes;
  args.staged_rows = plan.rows_per_access;
  args.row_spacing = plan.row_spacing;
  args.leaf_turns = plan.leaf_turns;
  args.branches = plan.branches;
  args.batches = plan.batches;
  args.labels = call.labels;
  args.scales = call.scales;
  std::copy_n(call.scalars_in, 2, args.scalars_in);
  args.scalars_out = call.scalars_out;
  if constexpr (Op::kHides || Op::kTakesColumn || kHasMask<Op>) args.op.Take(call);
  if constexpr (Op::kTakesLabel && Op::kSums > 0) args.op.Want(call.all_sums);

  void* statistics = call.statistics;
  void* kernel_args[] = {&args, &statistics};  // most kernels have only the first parameter
  return StartKernel(FindFunction<Op>(plan), plan, kernel_args, stream);
}

// Op<T, kTwoSums, kLogits> is an operation of cross entropy. A test of the cap at run time made
// calls without a cap up to 28 percent slower; one kernel for caps and masks made calls with a cap
// 12 percent slower (H100, median of 40).
template <typename T, template <typename, bool, Logits> typename Op, Logits kLogits>
cudaError_t LaunchLoss(const RowCall& call, const RowPlan& plan, cudaStream_t stream) {
  return plan.two_sums ? LaunchRowOp<Op<T, true, kLogits>>(call, plan, stream)
                       : LaunchRowOp<Op<T, false, kLogits>>(call, plan, stream);
}

template <typename T, Logits kLogits>
cudaError_t LaunchLosses(const RowCall& call, const RowPlan& plan, cudaStream_t stream) {
  switch (call.operation) {
    case Operation::kCrossEntropyForward:
      return LaunchLoss<T, CrossEntropyForward, kLogits>(call, plan, stream);
    case Operation::kCrossEntropyForwardGrad:
      return LaunchLoss<T, CrossEntropyForwardGrad, kLogits>(call, plan, stream);
    default:
      return LaunchRowOp<CrossEntropyGrad<T, kLogits>>(call, plan, stream);
  }
}

template <typename... Ops>
cudaError_t LaunchAmong(OperationList<Ops...>, const RowCall& call, const RowPlan& plan,
                        cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  ((call.operation == Ops::kOperation ? void(status = LaunchRowOp<Ops>(call, plan, stream))
                                      : void()),
   ...);
  return status;
}

template <typename T>
using AttentionOps =
    OperationList<AttentionForward<T, Operation::kMaskedSoftmaxForward>,
                  AttentionForward<T, Operation::kBiasedSoftmaxForward>, MaskedSoftmaxGrad<T>>;

template <typename T>
cudaError_t LaunchOperation(const RowCall& call, const RowPlan& plan, cudaStream_t stream) {
  static_assert(IsListOf(PlainOps<Cuda<T>>(), &OperationTraits::IsPlain), "wrong ops/all.h");
  if (HidesElements(call.operation)) return LaunchAmong(AttentionOps<T>(), call, plan, stream);
  if (!TraitsOf(call.operation).TakesLabel()) {
    return LaunchAmong(PlainOps<Cuda<T>>(), call, plan, stream);
  }
  if (call.masking.mask != nullptr) return LaunchLosses<T, Logits::kMasked>(call, plan, stream);
  return call.scales.count > 1 ? LaunchLosses<T, Logits::kCapped>(call, plan, stream)
                               : LaunchLosses<T, Logits::kPlain>(call, plan, stream);
}

}  // namespace jaxkernels
