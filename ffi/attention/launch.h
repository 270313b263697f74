// Launches the kernels of float32 flash attention.
//
// Owns: the boundary between host code and CUDA code. Calls only enqueue work: they never allocate
// or wait, so that CUDA graphs can capture them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/plan.h"
#include "attention/tiles.h"

namespace jaxkernels {

// ScoreOperand is a bias or a mask that broadcasts to (batch, heads, queries, keys).
template <typename T>
struct ScoreOperand {
  const T* data = nullptr;  // null without one
  int64_t shape[4] = {1, 1, 1, 1};
};

struct AttentionCall {
  const float* q;
  const float* k;
  const float* v;
  ScoreOperand<float> bias;
  ScoreOperand<uint8_t> mask;
  const int32_t* q_lengths = nullptr;
  const int32_t* k_lengths = nullptr;
  float scale;
  BandOfKeys band;
  float* out;
  float* row_sums;
  char* scratch;
};

cudaError_t LaunchAttention(const AttentionProblem& problem, const AttentionPlan& plan,
                            const AttentionCall& call, cudaStream_t stream);

inline constexpr int kMaxBiasGroups = 1024;

struct AttentionGradients {
  const float* dy;
  float* dq;
  float* dk;
  float* dv;
  // (bias_groups, batch and heads of the bias, queries, keys): partial sums of the bias's gradient
  float* dbias = nullptr;
  int bias_groups = 0;  // 0: no gradient of the bias
};

// LaunchAttentionBackward computes the gradients from `call.out` and `call.row_sums`.
// Requires: `call.row_sums` are those of LaunchAttention: other references can overflow P.
cudaError_t LaunchAttentionBackward(const AttentionProblem& problem, const AttentionPlan& plan,
                                    const AttentionCall& call, const AttentionGradients& gradients,
                                    cudaStream_t stream);

}  // namespace jaxkernels
