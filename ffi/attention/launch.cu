#include <algorithm>
#include <type_traits>

#include "attention/bias_gradient.cuh"
#include "attention/forward.cuh"
#include "attention/key_gradient.cuh"
#include "attention/launch.h"
#include "attention/query_gradient.cuh"
#include "attention/split_gradient.cuh"
#include "core/launch_kernel.h"

namespace jaxkernels {
namespace {

bool IsAligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

template <typename T>
T* Member(T* data, int64_t member, int64_t elements) {
  return data == nullptr ? nullptr : data + member * elements;
}

SplitOperand OperandOf(const float* data, int64_t member, int64_t rows, int64_t heads,
                       int64_t depth, char* scratch, const SplitPlaces& offsets) {
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
StridedScores<T> StridedScoresOf(const ScoreOperand<T>& operand, int64_t member) {
  StridedScores<T> scores = {};
  if (operand.data == nullptr) return scores;
  int64_t strides[4], elements = 1;
  for (int i = 3; i >= 0; --i) {
    strides[i] = operand.shape[i] == 1 ? 0 : elements;
    elements *= operand.shape[i];
  }
  scores = {.data = operand.data + member * strides[0],
            .batch = strides[0],
            .head = strides[1],
            .row = strides[2],
            .column = static_cast<int>(strides[3])};
  scores.pairs =
      scores.column == 1 && operand.shape[3] % 2 == 0 && IsAligned(operand.data, 2 * sizeof(T));
  return scores;
}

AttentionArgs ArgsOf(const AttentionProblem& p, const AttentionPlan& plan,
                     const AttentionCall& call, const AttentionScratch& scratch, int64_t member,
                     int64_t members) {
  const int64_t rows = p.queries * p.heads;
  const auto key_operand = [&](const float* data, int64_t depth, const SplitPlaces& offsets) {
    return OperandOf(data, member, p.keys, p.key_heads, depth, call.scratch, offsets);
  };
  return {.q = OperandOf(call.q, member, p.queries, p.heads, p.depth, call.scratch, scratch.q),
          .k = key_operand(call.k, p.depth, scratch.k),
          .v = key_operand(call.v, p.value_depth, scratch.v),
          .bias = StridedScoresOf(call.bias, member),
          .mask = StridedScoresOf(call.mask, member),
          .q_lengths = Member(call.q_lengths, member, 1),
          .k_lengths = Member(call.k_lengths, member, 1),
          .band = call.band,
          .scale = call.bias.data == nullptr ? call.scale * kLog2E : call.scale,
          .head_group = static_cast<int>(p.heads / p.key_heads),
          .out = Member(call.out, member, rows * p.value_depth),
          .out_pairs = p.value_depth % 2 == 0 && IsAligned(call.out, 8),
          .row_sums = Member(reinterpret_cast<float2*>(call.row_sums), member, rows),
          .order = {.heads = static_cast<int>(p.heads),
                    .tiles = static_cast<int>(CeilDiv(p.queries, kBlockRows)),
                    .group = plan.heads_of_group,
                    .all_heads = static_cast<int>(members * p.heads)}};
}

GradientArgs GradientArgsOf(const AttentionProblem& p, const AttentionPlan& plan,
                            const AttentionCall& call, const AttentionGradients& gradients,
                            int64_t member, int64_t members) {
  const AttentionScratch scratch = MakeAttentionScratch(
      members, p.queries, p.keys, p.heads, p.key_heads, plan.padded_depth, /*backward=*/true);
  const int64_t rows = p.queries * p.heads, key_rows = p.keys * p.key_heads;
  static_assert(sizeof(RowStats) == kRowStatsBytes);
  SplitOperand g =
      OperandOf(gradients.dy, member, p.queries, p.heads, p.value_depth, call.scratch, scratch.g);
  g.packs = g.packs && IsAligned(call.out, 16);
  return {.forward = ArgsOf(p, plan, call, scratch, member, members),
          .g = g,
          .out = Member(call.out, member, rows * p.value_depth),
          .stats = reinterpret_cast<RowStats*>(call.scratch + scratch.stats),
          .scale = call.scale,
          .dq = Member(gradients.dq, member, rows * p.depth),
          .dk = Member(gradients.dk, member, key_rows * p.depth),
          .dv = Member(gradients.dv, member, key_rows * p.value_depth),
          .key_order = {
              .heads = static_cast<int>(p.key_heads),
              .tiles = static_cast<int>(CeilDiv(p.keys, kBlockRows)),
              .group = std::max(plan.heads_of_group / static_cast<int>(p.heads / p.key_heads), 1),
              .all_heads = static_cast<int>(members * p.key_heads),
              .of_keys = true}};
}

unsigned BlocksOfOperand(const SplitOperand& operand, int64_t members) {
  return static_cast<unsigned>(members * operand.heads * operand.blocks);
}

bool HasBiasMask(const AttentionArgs& args) {
  return args.bias.data != nullptr || args.mask.data != nullptr;
}

template <int kDepth>
cudaError_t LaunchSplit(const AttentionArgs& args, int64_t members, cudaStream_t stream) {
  const unsigned blocks_q = BlocksOfOperand(args.q, members);
  const unsigned blocks_k = BlocksOfOperand(args.k, members);
  const int64_t blocks = int64_t{blocks_q} + blocks_k + BlocksOfOperand(args.v, members);
  return LaunchKernel(SplitAttention<kDepth>, {blocks, kSplitAttentionThreads}, stream, args,
                      blocks_q, blocks_k);
}

// ShapeOf is the launch of a kernel whose blocks take one of `tiles` after the other.
LaunchShape ShapeOf(const AttentionPlan& plan, int64_t tiles) {
  return {std::min<int64_t>(plan.sm_count, tiles), plan.block_threads, plan.smem_bytes};
}

template <int kDepth>
cudaError_t LaunchForward(const AttentionPlan& plan, const AttentionArgs& args, int64_t members,
                          cudaStream_t stream) {
  const cudaError_t error = LaunchSplit<kDepth>(args, members, stream);
  if (error != cudaSuccess) return error;
  return LaunchKernel(
      HasBiasMask(args) ? AttentionForward<kDepth, true> : AttentionForward<kDepth, false>,
      ShapeOf(plan, args.order.Count()), stream, args);
}

template <int kDepth>
cudaError_t LaunchBackward(const AttentionPlan& plan, const GradientArgs& args, int64_t members,
                           cudaStream_t stream) {
  const bool bias_mask = HasBiasMask(args.forward);
  cudaError_t error = LaunchSplit<kDepth>(args.forward, members, stream);
  if (error == cudaSuccess) {
    error = LaunchKernel(SplitGradient<kDepth>,
                         {BlocksOfOperand(args.g, members), kSplitAttentionThreads}, stream, args);
  }
  if (error == cudaSuccess) {
    error = LaunchKernel(
        bias_mask ? AttentionQueryGradient<kDepth, true> : AttentionQueryGradient<kDepth, false>,
        ShapeOf(plan, args.forward.order.Count()), stream, args);
  }
  if (error != cudaSuccess) return error;
  return LaunchKernel(
      bias_mask ? AttentionKeyGradient<kDepth, true> : AttentionKeyGradient<kDepth, false>,
      ShapeOf(plan, args.key_order.Count()), stream, args);
}

// LaunchBias computes the gradient of a bias with all queries and keys.
template <int kDepth>
cudaError_t LaunchBias(const AttentionPlan& plan, const GradientArgs& args,
                       const AttentionCall& call, const AttentionGradients& gradients,
                       int64_t member, int64_t members, cudaStream_t stream) {
  const int64_t* const shape = call.bias.shape;
  const bool shares_batch = shape[0] == 1;
  const int64_t matrix = shape[2] * shape[3];
  const BiasGradientArgs bias = {
      .gradient = args,
      .sums = gradients.dbias + (shares_batch ? 0 : member * shape[1] * matrix),
      .group_pitch = shape[0] * shape[1] * matrix,
      .batch = static_cast<int>(shares_batch ? 1 : members),
      .heads = static_cast<int>(shape[1]),
      .members = static_cast<int>(members),
      .groups = gradients.bias_groups,
      .adds = shares_batch && member > 0};
  const int64_t blocks = int64_t{bias.groups} * bias.batch * bias.heads * args.forward.q.blocks *
                         args.forward.k.blocks;
  return LaunchKernel(AttentionBiasGradient<kDepth>, {blocks, plan.block_threads, plan.smem_bytes},
                      stream, bias);
}

template <typename Launch>
cudaError_t ForDepth(const AttentionPlan& plan, Launch launch) {
  if (plan.padded_depth == 32) return launch(std::integral_constant<int, 32>());
  if (plan.padded_depth == 64) return launch(std::integral_constant<int, 64>());
  return launch(std::integral_constant<int, 128>());
}

template <typename Launch>
cudaError_t ForGroups(const AttentionProblem& problem, const AttentionPlan& plan, Launch launch) {
  cudaError_t error = cudaSuccess;
  for (int64_t member = 0; error == cudaSuccess && member < problem.batch;
       member += plan.batch_of_group) {
    error = launch(member, std::min(plan.batch_of_group, problem.batch - member));
  }
  return error;
}

}  // namespace

cudaError_t LaunchAttention(const AttentionProblem& problem, const AttentionPlan& plan,
                            const AttentionCall& call, cudaStream_t stream) {
  return ForGroups(problem, plan, [&](int64_t member, int64_t members) {
    const AttentionScratch scratch =
        MakeAttentionScratch(members, problem.queries, problem.keys, problem.heads,
                             problem.key_heads, plan.padded_depth, /*backward=*/false);
    const AttentionArgs args = ArgsOf(problem, plan, call, scratch, member, members);
    return ForDepth(
        plan, [&](auto depth) { return LaunchForward<depth()>(plan, args, members, stream); });
  });
}

cudaError_t LaunchAttentionBackward(const AttentionProblem& problem, const AttentionPlan& plan,
                                    const AttentionCall& call, const AttentionGradients& gradients,
                                    cudaStream_t stream) {
  return ForGroups(problem, plan, [&](int64_t member, int64_t members) {
    const GradientArgs args = GradientArgsOf(problem, plan, call, gradients, member, members);
    return ForDepth(plan, [&](auto depth) {
      const cudaError_t error = LaunchBackward<depth()>(plan, args, members, stream);
      if (error != cudaSuccess || gradients.bias_groups == 0) return error;
      return LaunchBias<depth()>(plan, args, call, gradients, member, members, stream);
    });
  });
}

}  // namespace jaxkernels
