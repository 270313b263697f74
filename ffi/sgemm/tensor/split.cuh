// The pass before the product: computes the scales of lines, and splits lines into pairs.
//
// Owns: the kernel, its blocks, and the elements that a thread reads. Must not know: the product.
//
// MN-major operands take two launches, because the scale of a line needs the largest element of all
// its packed tiles. A block has one packed tile (layout.h) of 128 lines x 64 k, and a thread 32
// floats of it. The tile passes through shared memory and leaves as one bulk copy. One launch,
// whose blocks keep their elements and wait for each other, took 92 instead of 106 us at 4096^3
// (H200, 2026-11). But the waiting blocks of several products at once could fill the GPU, and none
// would end.
//
// K-major operands take one launch and are read once. 32 to 256 threads share a line. A thread has
// 8 neighbouring k of it at two or four places. A line's part of a packed tile is 128 bytes,
// written by 8 threads. The part of a longer line that does not fit the registers of a block is
// read again, from the L2.
//
// K-major lines of more than 8192 elements, by packed tiles in two launches and by lines.
// H200, all of a product, us (2026-11):
// (308, 722, 14203) NT 129, 95
// (2000, 2000, 12000) NT 606, 575
#pragma once

#include "core/shared_address.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/pair.cuh"

namespace jaxkernels {

// SplitPass: the first pass finds the largest elements, the second makes pairs.
enum class SplitPass { kFirst, kSecond };

struct SplitSmem {
  alignas(128) char packed_tile[kPackedTileBytes];
  LineScale scales[kTensorLines];
  uint32_t maxima[kTensorLines];
  uint32_t norms[kTensorLines];
  uint32_t inexact[kTensorLines];
};

// ThreadShare is a thread's elements of an MN-major packed tile: sets of neighbouring k of one
// line. Neighbouring lanes have neighbouring lines. Loads are coalesced, and stores to shared
// memory have no bank conflicts.
struct ThreadShare {
  static constexpr int kCount = 8;
  static constexpr int kSets = kTensorLines * kTensorStepK / kSplitThreads / kCount;
  using Values = float[kSets][kCount];

  static __device__ int Line() { return threadIdx.x % kTensorLines; }
  static __device__ int DepthOf(int set) {
    return (threadIdx.x / kTensorLines * kSets + set) * kCount;
  }
};

// SplitSource is the elements of one packed tile; lines x depth of them exist.
struct SplitSource {
  const float* data;
  int64_t pitch;
  int lines, depth;
};

// ReadShare reads a thread's elements. kWhole: all exist. Loads without a condition are all in
// flight at once.
template <bool kWhole>
__device__ inline void ReadShare(const SplitSource& from, ThreadShare::Values& v) {
  const int line = ThreadShare::Line();
#pragma unroll
  for (int i = 0; i < ThreadShare::kSets; ++i) {
    const int k = ThreadShare::DepthOf(i);
    const float* const first = from.data + (k * from.pitch + line);
#pragma unroll
    for (int j = 0; j < ThreadShare::kCount; ++j) {
      const bool valid = kWhole || (line < from.lines && k + j < from.depth);
      v[i][j] = valid ? first[j * from.pitch] : 0.0f;
    }
  }
}

template <int kCount, int kNeighbours>
__device__ inline uint32_t LargestOf(const float (&v)[kCount][kNeighbours]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < kNeighbours; ++j) largest = max(largest, FiniteBits(v[i][j]));
  }
  return largest;
}

__device__ inline void MakePairs(const ThreadShare::Values& v, SplitSmem& smem) {
  const int line = ThreadShare::Line();
  LineFacts facts;
#pragma unroll
  for (int i = 0; i < ThreadShare::kSets; ++i) {
    StorePairs<ThreadShare::kCount>(smem.packed_tile, line, ThreadShare::DepthOf(i), v[i],
                                    smem.scales[line], facts);
  }
  if (facts.inexact) smem.inexact[line] = 1;
  atomicAdd(&smem.norms[line], facts.norm);
}

// StorePackedTile copies the tile from shared to global memory. The thread waits until shared
// memory has been read.
__device__ inline void StorePackedTile(char* to, const SplitSmem& smem) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group.read 0;\n" ::"l"(to),
      "r"(SharedAddress(smem.packed_tile)), "r"(kPackedTileBytes)
      : "memory");
#endif
}

// FenceForBulkCopy makes the thread's writes to shared memory visible to copies after a barrier.
__device__ inline void FenceForBulkCopy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

template <SplitPass kPass>
__device__ inline void SplitMNMajor(const TensorOperand& operand, unsigned block, SplitSmem& smem) {
  const int step = block % operand.steps, tile = block / operand.steps;
  const int matrix = tile / operand.tiles;
  const int64_t line = int64_t{tile % operand.tiles} * kTensorLines;
  const int64_t begin = int64_t{step} * kTensorStepK;
  const int64_t number = int64_t{tile} * kTensorLines + threadIdx.x;  // of the thread's line
  const bool has_line = threadIdx.x < kTensorLines;
  const SplitSource from = {
      operand.data + matrix * operand.MatrixElements() + begin * operand.pitch + line,
      operand.pitch, static_cast<int>(min(operand.lines - line, int64_t{kTensorLines})),
      static_cast<int>(min(operand.depth - begin, int64_t{kTensorStepK}))};
  ThreadShare::Values v;
  if (from.lines == kTensorLines && from.depth == kTensorStepK) {
    ReadShare<true>(from, v);
  } else {
    ReadShare<false>(from, v);
  }
  if constexpr (kPass == SplitPass::kFirst) {
    if (has_line) smem.maxima[threadIdx.x] = 0;
    __syncthreads();
    atomicMax(&smem.maxima[ThreadShare::Line()], LargestOf(v));
    __syncthreads();
    if (has_line) atomicMax(&operand.maxima[number], smem.maxima[threadIdx.x]);
    return;
  }
  if (has_line) {
    smem.inexact[threadIdx.x] = smem.norms[threadIdx.x] = 0;
    const LineScale scale = ScaleOfMaximum(operand.maxima[number]);
    smem.scales[threadIdx.x] = scale;
    if (step == 0) operand.factors[number] = {scale.undo_first, scale.undo_second};
  }
  __syncthreads();
  MakePairs(v, smem);
  FenceForBulkCopy();
  __syncthreads();
  if (has_line) {
    if (smem.inexact[threadIdx.x] != 0) KeepInexact(operand, number);
    KeepNorm(operand, number, smem.norms[threadIdx.x]);
  } else if (threadIdx.x == kTensorLines) {
    StorePackedTile(operand.packed + int64_t{block} * kPackedTileBytes, smem);
  }
}

inline constexpr int kChunk = 8, kMinChunks = 2, kMaxChunks = 4;
inline constexpr int kSpan = kSplitThreads * kMaxChunks * kChunk;  // k that fit a block

// ThreadsOfLine returns the threads that share a line: a power of two, at least a warp.
__host__ __device__ inline int ThreadsOfLine(const TensorOperand& operand) {
  int threads = 32;
  while (threads < kSplitThreads && threads * kMinChunks * kChunk < operand.steps * kTensorStepK) {
    threads *= 2;
  }
  return threads;
}

template <int kChunks>
__device__ inline void ReadChunks(const TensorOperand& operand, int matrix, int64_t line, int first,
                                  int threads, float (&v)[kChunks][kChunk], int begin = 0) {
  const float* const from = operand.data + matrix * operand.MatrixElements() + line * operand.pitch;
  const int depth = line < operand.lines ? static_cast<int>(operand.depth) : 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int k = begin + (i * threads + first) * kChunk;
    if (operand.packs && k + kChunk <= depth) {
#pragma unroll
      for (int j = 0; j < kChunk; j += 4) {
        LoadQuad(from + k + j, &v[i][j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) v[i][j] = k + j < depth ? from[k + j] : 0.0f;
    }
  }
}

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
__device__ inline void StoreChunks(const TensorOperand& operand, int64_t number, int first,
                                   int threads, const float (&v)[kChunks][kChunk],
                                   const LineScale& scale, LineFacts& facts, int begin = 0) {
  const int tile = static_cast<int>(number / kTensorLines);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int k = begin + (i * threads + first) * kChunk, step = k / kTensorStepK;
    if (step >= operand.steps) continue;
    char* const packed_tile =
        operand.packed + (int64_t{tile} * operand.steps + step) * kPackedTileBytes;
    StorePairs<kChunk>(packed_tile, static_cast<int>(number % kTensorLines), k % kTensorStepK, v[i],
                       scale, facts);
  }
}

__device__ inline void KeepFacts(const TensorOperand& operand, int64_t number, LineFacts facts) {
  const bool inexact = __any_sync(~0u, facts.inexact);
  facts.norm = __reduce_add_sync(~0u, facts.norm);
  if (threadIdx.x % 32 == 0) {
    if (inexact) KeepInexact(operand, number);
    KeepNorm(operand, number, facts.norm);
  }
}

template <int kChunks>
__device__ inline void SplitKMajorLines(const TensorOperand& operand, unsigned block, int threads) {
  const int first = threadIdx.x % threads;
  const int64_t number =
      int64_t{block} * (kSplitThreads / threads) + static_cast<int>(threadIdx.x) / threads;
  const int tile = static_cast<int>(number / kTensorLines), matrix = tile / operand.tiles;
  float v[kChunks][kChunk];
  ReadChunks(operand, matrix, number - int64_t{matrix} * operand.tiles * kTensorLines, first,
             threads, v);
  const LineScale scale = ScaleOfMaximum(MaximumOfLine(LargestOf(v), threads));
  if (first == 0) operand.factors[number] = {scale.undo_first, scale.undo_second};
  LineFacts facts;
  StoreChunks(operand, number, first, threads, v, scale, facts);
  KeepFacts(operand, number, facts);
}

// SplitLongKMajorLine splits the line of a block, which reads it forwards for its largest element,
// and backwards for pairs. The last span stays in registers.
__device__ inline void SplitLongKMajorLine(const TensorOperand& operand, int64_t number) {
  const int matrix = static_cast<int>(number / (operand.tiles * kTensorLines));
  const int64_t line = number - int64_t{matrix} * operand.tiles * kTensorLines;
  const int first = threadIdx.x, end = operand.steps * kTensorStepK;
  float v[kMaxChunks][kChunk];
  uint32_t largest = 0;
#pragma unroll 1
  for (int begin = 0; begin < end; begin += kSpan) {
    ReadChunks(operand, matrix, line, first, kSplitThreads, v, begin);
    largest = max(largest, LargestOf(v));
  }
  const LineScale scale = ScaleOfMaximum(MaximumOfLine(largest, kSplitThreads));
  if (first == 0) operand.factors[number] = {scale.undo_first, scale.undo_second};
  LineFacts facts;
#pragma unroll 1
  for (int begin = (end - 1) / kSpan * kSpan; begin >= 0; begin -= kSpan) {
    StoreChunks(operand, number, first, kSplitThreads, v, scale, facts, begin);
    if (begin > 0) ReadChunks(operand, matrix, line, first, kSplitThreads, v, begin - kSpan);
  }
  KeepFacts(operand, number, facts);
}

__device__ inline void SplitKMajor(const TensorOperand& operand, unsigned block) {
  const int threads = ThreadsOfLine(operand);
  if (operand.depth > kSpan) {
    SplitLongKMajorLine(operand, block);
  } else if (threads * kMinChunks * kChunk >= operand.steps * kTensorStepK) {
    SplitKMajorLines<kMinChunks>(operand, block, threads);
  } else {
    SplitKMajorLines<kMaxChunks>(operand, block, threads);
  }
}

// SplitBlocks returns the blocks of a pass for an operand. The first pass does all work for a
// K-major operand.
// H200, 4096^3, by packed tiles in two passes, or by lines if K-major, us (2026-11):
// NT 106, 75
// NN 106, 95
template <SplitPass kPass>
int64_t SplitBlocks(const TensorOperand& operand) {
  const int64_t tiles = operand.matrices * operand.tiles;
  if (!operand.k_major) return tiles * operand.steps;
  if (kPass == SplitPass::kSecond) return 0;
  return tiles * kTensorLines * ThreadsOfLine(operand) / kSplitThreads;
}

// SplitOperands: the first `blocks_a` blocks are for A, the others for B. The second pass starts
// with the data that the first one read last, which may still be in the L2.
template <SplitPass kPass>
__global__ void __launch_bounds__(kSplitThreads, 4)
    SplitOperands(const __grid_constant__ TensorArgs args, unsigned blocks_a) {
  extern __shared__ __align__(128) char bytes[];
  const unsigned index = kPass == SplitPass::kFirst ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  const bool of_a = index < blocks_a;
  const TensorOperand& operand = of_a ? args.a : args.b;
  const unsigned block = of_a ? index : index - blocks_a;
  if (kPass == SplitPass::kFirst && operand.k_major) {
    SplitKMajor(operand, block);
  } else {
    SplitMNMajor<kPass>(operand, block, *reinterpret_cast<SplitSmem*>(bytes));
  }
}

}  // namespace jaxkernels
