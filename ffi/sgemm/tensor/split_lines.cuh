// Lines along k that fit the registers of some threads: scales and pairs in one pass.
//
// Owns: which of these lines a thread reads. Must not know: the product, other layouts.
//
// Work split: 32 to 256 threads, a line; a thread has 8 neighbouring k of it at two or four places.
// Memory: operands are read once; a line's part of an image is 128 bytes, written by 8 threads.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_LINES_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_LINES_CUH_

#include "sgemm/tensor/split_pairs.cuh"

namespace jaxkernels {

inline constexpr int kChunk = 8, kFewChunks = 2, kMostChunks = 4;
static_assert(kSplitThreads * kMostChunks * kChunk == kMostDepthByLines);

// Whether an operand is split by lines.
__host__ __device__ inline bool HasShortLines(const TensorOperand& operand) {
  return operand.along_k && operand.depth <= kMostDepthByLines;
}

// Threads that share a line: a power of two, at least a warp.
__host__ __device__ inline int ThreadsOfLine(const TensorOperand& operand) {
  int threads = 32;
  while (threads < kSplitThreads && threads * kFewChunks * kChunk < operand.steps * kTensorStepK) {
    threads *= 2;
  }
  return threads;
}
__host__ __device__ inline int64_t BlocksOfLines(const TensorOperand& operand) {
  return operand.members * operand.tiles * kTensorLines * ThreadsOfLine(operand) / kSplitThreads;
}

template <int kChunks>
__device__ inline void ReadChunks(const TensorOperand& operand, int member, int64_t line, int first,
                                  int threads, float (&v)[kChunks][kChunk]) {
  const float* const from = operand.data + member * operand.MemberElements() + line * operand.pitch;
  const int depth = line < operand.lines ? static_cast<int>(operand.depth) : 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int k = (i * threads + first) * kChunk;
    if (operand.packs && k + kChunk <= depth) {
#pragma unroll
      for (int j = 0; j < kChunk; j += 4) {
        const float4 pack = *reinterpret_cast<const float4*>(from + k + j);
        v[i][j] = pack.x, v[i][j + 1] = pack.y, v[i][j + 2] = pack.z, v[i][j + 3] = pack.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) v[i][j] = k + j < depth ? from[k + j] : 0.0f;
    }
  }
}

// The largest of all threads of a line.
__device__ inline uint32_t MaximumOfLine(uint32_t largest, int threads) {
  __shared__ uint32_t of_warp[kSplitThreads / 32];
  largest = __reduce_max_sync(~0u, largest);
  if (threads == 32) return largest;
  const int warp = threadIdx.x / 32, warps = threads / 32, first = warp / warps * warps;
  if (threadIdx.x % 32 == 0) of_warp[warp] = largest;
  __syncthreads();
  for (int i = 0; i < warps; ++i) largest = max(largest, of_warp[first + i]);
  return largest;
}

template <int kChunks>
__device__ inline void SplitLinesInChunks(const TensorOperand& operand, unsigned block,
                                          int threads) {
  const int first = threadIdx.x % threads;
  const int64_t number =
      int64_t{block} * (kSplitThreads / threads) + static_cast<int>(threadIdx.x) / threads;
  const int tile = static_cast<int>(number / kTensorLines), member = tile / operand.tiles;
  float v[kChunks][kChunk];
  ReadChunks(operand, member, number - int64_t{member} * operand.tiles * kTensorLines, first,
             threads, v);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) largest = max(largest, FiniteBits(v[i][j]));
  }
  const LineScale scale = ScaleOfMaximum(MaximumOfLine(largest, threads));
  if (first == 0) KeepScale(operand, number, scale);
  LineFacts facts;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int k = (i * threads + first) * kChunk, step = k / kTensorStepK;
    if (step >= operand.steps) continue;
    char* const image = operand.images + (int64_t{tile} * operand.steps + step) * kTensorImageBytes;
    StorePairs<kChunk>(image, static_cast<int>(number % kTensorLines), k % kTensorStepK, v[i],
                       scale, facts);
  }
  const bool marked = __any_sync(~0u, facts.marked);
  facts.norm = __reduce_add_sync(~0u, facts.norm);
  if (threadIdx.x % 32 == 0) {
    if (marked) KeepMark(operand, number);
    KeepNorm(operand, number, facts.norm);
  }
}

__device__ inline void SplitLines(const TensorOperand& operand, unsigned block) {
  const int threads = ThreadsOfLine(operand);
  if (threads * kFewChunks * kChunk >= operand.steps * kTensorStepK) {
    SplitLinesInChunks<kFewChunks>(operand, block, threads);
  } else {
    SplitLinesInChunks<kMostChunks>(operand, block, threads);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_LINES_CUH_
