#include "attention/launch.h"

#include <algorithm>

#include "attention/forward.cuh"
#include "core/launch_kernel.h"

namespace jaxkernels {
namespace {

bool IsAligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// Member returns the address of a batch member of a row-major array.
template <typename T>
T* Member(T* data, int64_t member, int64_t elements) {
  return data == nullptr ? nullptr : data + member * elements;
}

SplitOperand OperandOf(const float* data, int64_t member, int64_t rows, int64_t heads,
                       int64_t depth, char* scratch, const SplitScratch& offsets) {
  return {.data = Member(data, member, rows * heads * depth),
          .rows = static_cast<int>(rows),
          .heads = static_cast<int>(heads),
          .depth = static_cast<int>(depth),
          .packs = depth % 4 == 0 && IsAligned(data, 16),
          .blocks = static_cast<int>(CeilDiv(rows, kBlockRows)),
          .packed = scratch + offsets.packed,
          .exponents = reinterpret_cast<int*>(scratch + offsets.exponents)};
}

template <typename T>
ScoreSide<T> SideOf(const ScoreOperand<T>& operand, int64_t member) {
  ScoreSide<T> side = {};
  if (operand.data == nullptr) return side;
  int64_t strides[4], elements = 1;
  for (int i = 3; i >= 0; --i) {
    strides[i] = operand.shape[i] == 1 ? 0 : elements;
    elements *= operand.shape[i];
  }
  side = {.data = operand.data + member * strides[0],
          .batch = strides[0],
          .head = strides[1],
          .row = strides[2],
          .column = static_cast<int>(strides[3])};
  side.pairs =
      side.column == 1 && operand.shape[3] % 2 == 0 && IsAligned(operand.data, 2 * sizeof(T));
  return side;
}

AttentionArgs ArgsOf(const AttentionProblem& p, const AttentionPlan& plan,
                     const AttentionCall& call, int64_t member, int64_t members) {
  const AttentionScratch scratch = MakeAttentionScratch(members, p.queries, p.keys, p.heads,
                                                        p.key_heads, plan.halves);
  const int64_t rows = p.queries * p.heads;
  const auto key_operand = [&](const float* data, int64_t depth, const SplitScratch& offsets) {
    return OperandOf(data, member, p.keys, p.key_heads, depth, call.scratch, offsets);
  };
  return {.q = OperandOf(call.q, member, p.queries, p.heads, p.depth, call.scratch, scratch.q),
          .k = key_operand(call.k, p.depth, scratch.k),
          .v = key_operand(call.v, p.value_depth, scratch.v),
          .bias = SideOf(call.bias, member),
          .mask = SideOf(call.mask, member),
          .q_lengths = Member(call.q_lengths, member, 1),
          .k_lengths = Member(call.k_lengths, member, 1),
          .band = call.band,
          .scale = call.scale * kLog2E,
          .head_group = static_cast<int>(p.heads / p.key_heads),
          .out = Member(call.out, member, rows * p.value_depth),
          .out_pairs = p.value_depth % 2 == 0 && IsAligned(call.out, 8),
          .row_sums = Member(reinterpret_cast<float2*>(call.row_sums), member, rows),
          .order = {.heads = static_cast<int>(p.heads),
                    .tiles = static_cast<int>(CeilDiv(p.queries, kBlockRows)),
                    .group = plan.heads_of_group,
                    .all_heads = static_cast<int>(members * p.heads)},
          .counter = reinterpret_cast<int*>(call.scratch + scratch.counter)};
}

template <int kHalves>
cudaError_t LaunchGroup(const AttentionPlan& plan, const AttentionArgs& args, int64_t members,
                        cudaStream_t stream) {
  const auto blocks_of = [&](const SplitOperand& operand) {
    return static_cast<unsigned>(members * operand.heads * operand.blocks);
  };
  const unsigned blocks_q = blocks_of(args.q), blocks_k = blocks_of(args.k);
  const int64_t blocks = int64_t{blocks_q} + blocks_k + blocks_of(args.v);
  const cudaError_t error =
      LaunchKernel(SplitAttention<kHalves>, {blocks, kSplitAttentionThreads}, stream, args,
                   blocks_q, blocks_k);
  if (error != cudaSuccess) return error;
  const bool has_sides = args.bias.data != nullptr || args.mask.data != nullptr;
  return LaunchKernel(
      has_sides ? AttentionForward<kHalves, true> : AttentionForward<kHalves, false>,
      {std::min<int64_t>(plan.grid_blocks, args.order.Count()), plan.block_threads,
       plan.smem_bytes},
      stream, args);
}

}  // namespace

cudaError_t LaunchAttention(const AttentionProblem& problem, const AttentionPlan& plan,
                            const AttentionCall& call, cudaStream_t stream) {
  for (int64_t member = 0; member < problem.batch; member += plan.batch_of_group) {
    const int64_t members = std::min(plan.batch_of_group, problem.batch - member);
    const AttentionArgs args = ArgsOf(problem, plan, call, member, members);
    const cudaError_t error = plan.halves == 1 ? LaunchGroup<1>(plan, args, members, stream)
                                               : LaunchGroup<2>(plan, args, members, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxkernels
