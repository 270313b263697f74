// Splits K-major operands: scales and pairs in one launch.
//
// Owns: the elements of a line that a thread reads. Must not know: the product, other layouts.
//
// Work split: 32 to 256 threads share a line. A thread has 8 neighbouring k of it at two or four
// places. Memory: operands are read once. A line's part of an image is 128 bytes, written by 8
// threads. The part of a longer line that does not fit the registers of a block is read again, from
// the L2.
//
// K-major lines of more than 8192 elements, by images in two launches and by lines. H200, all of a
// product, us (2026-11):
// (308, 722, 14203) NT 129, 95
// (2404, 158, 21082) 352, 297
// (2000, 2000, 12000) NT 606, 575
// (128, 128, 65536) 100, 100
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_LINES_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_LINES_CUH_

#include "sgemm/tensor/split_pairs.cuh"

namespace jaxkernels {

inline constexpr int kChunk = 8, kFewChunks = 2, kMostChunks = 4;
inline constexpr int kSpan = kSplitThreads * kMostChunks * kChunk;  // k that fit a block

// ThreadsOfLine returns the threads that share a line: a power of two, at least a warp.
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
                                  int threads, float (&v)[kChunks][kChunk], int begin = 0) {
  const float* const from = operand.data + member * operand.MemberElements() + line * operand.pitch;
  const int depth = line < operand.lines ? static_cast<int>(operand.depth) : 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int k = begin + (i * threads + first) * kChunk;
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

// MaximumOfLine returns the maximum over all threads of a line.
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
__device__ inline uint32_t LargestOf(const float (&v)[kChunks][kChunk]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) largest = max(largest, FiniteBits(v[i][j]));
  }
  return largest;
}

// StoreChunks stores the pairs of the elements that a thread has read.
template <int kChunks>
__device__ inline void StoreChunks(const TensorOperand& operand, int64_t number, int first,
                                   int threads, const float (&v)[kChunks][kChunk],
                                   const LineScale& scale, LineFacts& facts, int begin = 0) {
  const int tile = static_cast<int>(number / kTensorLines);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int k = begin + (i * threads + first) * kChunk, step = k / kTensorStepK;
    if (step >= operand.steps) continue;
    char* const image = operand.images + (int64_t{tile} * operand.steps + step) * kTensorImageBytes;
    StorePairs<kChunk>(image, static_cast<int>(number % kTensorLines), k % kTensorStepK, v[i],
                       scale, facts);
  }
}

// KeepFacts stores the facts about one line that the lanes of a warp have collected.
__device__ inline void KeepFacts(const TensorOperand& operand, int64_t number, LineFacts facts) {
  const bool marked = __any_sync(~0u, facts.marked);
  facts.norm = __reduce_add_sync(~0u, facts.norm);
  if (threadIdx.x % 32 == 0) {
    if (marked) KeepMark(operand, number);
    KeepNorm(operand, number, facts.norm);
  }
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
  const LineScale scale = ScaleOfMaximum(MaximumOfLine(LargestOf(v), threads));
  if (first == 0) KeepScale(operand, number, scale);
  LineFacts facts;
  StoreChunks(operand, number, first, threads, v, scale, facts);
  KeepFacts(operand, number, facts);
}

// SplitLongLine: a block reads a line forwards for its largest element, and backwards for pairs.
// The last span stays in registers.
__device__ inline void SplitLongLine(const TensorOperand& operand, int64_t number) {
  const int member = static_cast<int>(number / (operand.tiles * kTensorLines));
  const int64_t line = number - int64_t{member} * operand.tiles * kTensorLines;
  const int first = threadIdx.x, end = operand.steps * kTensorStepK;
  float v[kMostChunks][kChunk];
  uint32_t largest = 0;
#pragma unroll 1
  for (int begin = 0; begin < end; begin += kSpan) {
    ReadChunks(operand, member, line, first, kSplitThreads, v, begin);
    largest = max(largest, LargestOf(v));
  }
  const LineScale scale = ScaleOfMaximum(MaximumOfLine(largest, kSplitThreads));
  if (first == 0) KeepScale(operand, number, scale);
  LineFacts facts;
#pragma unroll 1
  for (int begin = (end - 1) / kSpan * kSpan; begin >= 0; begin -= kSpan) {
    StoreChunks(operand, number, first, kSplitThreads, v, scale, facts, begin);
    if (begin > 0) ReadChunks(operand, member, line, first, kSplitThreads, v, begin - kSpan);
  }
  KeepFacts(operand, number, facts);
}

__device__ inline void SplitLines(const TensorOperand& operand, unsigned block) {
  const int threads = ThreadsOfLine(operand);
  if (operand.depth > kSpan) {
    SplitLongLine(operand, block);
  } else if (threads * kFewChunks * kChunk >= operand.steps * kTensorStepK) {
    SplitLinesInChunks<kFewChunks>(operand, block, threads);
  } else {
    SplitLinesInChunks<kMostChunks>(operand, block, threads);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_LINES_CUH_
