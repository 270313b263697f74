// The pass before the product: scales of lines, and lines as pairs.
//
// Owns: who makes which image, and its scales and marks. Must not know: the product, how operands
// are read (split_read.cuh).
//
// Work split: a block has an image (layout.h), of 128 lines x 64 k. The scale of a line needs the
// largest element of all its images, so there are two launches. One alone, whose blocks keep what
// they have read and wait for each other, took 92 instead of 106 us at 4096^3 (H200, 2026-11); but
// the waiting blocks of several products at once could fill the GPU, and none would end.
//
// Memory: 32 floats a thread; the image passes through shared memory and leaves as one bulk copy.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_CUH_

#include "core/shared_address.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/pair.cuh"
#include "sgemm/tensor/split_read.cuh"

namespace jaxkernels {

enum class SplitPass { kMaxima, kPairs };

struct SplitSmem {
  alignas(128) char image[kTensorImageBytes];
  LineScale scales[kTensorLines];
  uint32_t maxima[kTensorLines];
  uint32_t marks[kTensorLines];
};

// Bits of |x|, as numbers in the order of |x|; 0 for what is not finite.
__device__ inline uint32_t FiniteBits(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffff;
  return bits < 0x7f800000 ? bits : 0;
}

// The largest elements of the image's lines, into shared memory, which is zero before.
template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void FindMaxima(const float (&v)[Share::kSets][Share::kCount], SplitSmem& smem) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
    if (kRead != SplitRead::kAcross) largest = 0;
#pragma unroll
    for (int j = 0; j < Share::kCount; ++j) largest = max(largest, FiniteBits(v[i][j]));
    if constexpr (kRead != SplitRead::kAcross) {
      constexpr int kLanes = Share::kLanesOfLine < 32 ? Share::kLanesOfLine : 32;
      if constexpr (kLanes == 32) {
        largest = __reduce_max_sync(~0u, largest);
      } else {
#pragma unroll
        for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
          largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
        }
      }
      if (threadIdx.x % kLanes == 0) atomicMax(&smem.maxima[Share::LineOf(i)], largest);
    }
  }
  if (kRead == SplitRead::kAcross) atomicMax(&smem.maxima[Share::LineOf(0)], largest);
}

// The image in shared memory, and which lines are marked.
template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void MakePairs(const float (&v)[Share::kSets][Share::kCount], SplitSmem& smem) {
  struct alignas(Share::kCount * 2) Pack {
    __half v[Share::kCount];
  };
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
    const int line = Share::LineOf(i), k = Share::DepthOf(i);
    const LineScale scale = smem.scales[line];
    Pack high, low;
    bool marks = false;
#pragma unroll
    for (int j = 0; j < Share::kCount; ++j) {
      const Pair pair = SplitIntoPair(v[i][j], scale, marks);
      high.v[j] = pair.high;
      low.v[j] = pair.low;
    }
    if (marks) smem.marks[line] = 1;
    char* const place = smem.image + line * 128 + ((k / 8 ^ line % 8) << 4) + k % 8 * 2;
    *reinterpret_cast<Pack*>(place) = high;
    *reinterpret_cast<Pack*>(place + kTensorPartBytes) = low;
  }
}

// From shared to global memory; the thread waits until it has been read.
__device__ inline void CopyImageOut(char* to, const SplitSmem& smem) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group.read 0;\n" ::"l"(to),
      "r"(SharedAddress(smem.image)), "r"(kTensorImageBytes)
      : "memory");
#endif
}

template <SplitPass kPass, SplitRead kRead>
__device__ inline void SplitImage(const TensorOperand& operand, unsigned block, SplitSmem& smem) {
  const int step = block % operand.steps, tile = block / operand.steps;
  const int member = tile / operand.tiles;
  const int64_t line = int64_t{tile % operand.tiles} * kTensorLines;
  const int64_t begin = int64_t{step} * kTensorStepK;
  const int64_t number = int64_t{tile} * kTensorLines + threadIdx.x;  // of a line of a thread
  const bool has_line = threadIdx.x < kTensorLines;
  const int64_t offset =
      kRead == SplitRead::kAcross ? begin * operand.pitch + line : line * operand.pitch + begin;
  const SplitSource from = {operand.data + member * operand.MemberElements() + offset,
                            operand.pitch,
                            static_cast<int>(min(operand.lines - line, int64_t{kTensorLines})),
                            static_cast<int>(min(operand.depth - begin, int64_t{kTensorStepK}))};
  using Share = SplitShare<kRead>;
  float v[Share::kSets][Share::kCount];
  ReadShare<kRead>(from, v);
  if constexpr (kPass == SplitPass::kMaxima) {
    if (has_line) smem.maxima[threadIdx.x] = 0;
    __syncthreads();
    FindMaxima<kRead>(v, smem);
    __syncthreads();
    if (has_line) atomicMax(&operand.maxima[number], smem.maxima[threadIdx.x]);
    return;
  }
  if (has_line) {
    smem.marks[threadIdx.x] = 0;
    const uint32_t largest = operand.maxima[number];
    const LineScale scale = ScaleOfMaximum(largest);
    smem.scales[threadIdx.x] = scale;
    if (step == 0) {
      operand.factors[number] = {scale.undo_first, scale.undo_second};
      if (largest == 0) operand.thresholds[number] = kThresholdOfZeros;
    }
  }
  __syncthreads();
  MakePairs<kRead>(v, smem);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
  if (threadIdx.x == 0) {
    CopyImageOut(operand.images + int64_t{block} * kTensorImageBytes, smem);
  } else if (threadIdx.x >= kSplitThreads - kTensorLines) {
    const int marked = threadIdx.x - (kSplitThreads - kTensorLines);
    if (smem.marks[marked] != 0) {
      operand.thresholds[int64_t{tile} * kTensorLines + marked] = kThresholdOfMarked;
      operand.tile_thresholds[tile] = kThresholdOfMarked;
    }
  }
}

template <SplitPass kPass>
__global__ void __launch_bounds__(kSplitThreads, 4)
    SplitOperands(const __grid_constant__ TensorArgs args, unsigned blocks_a) {
  extern __shared__ __align__(128) char bytes[];
  SplitSmem& smem = *reinterpret_cast<SplitSmem*>(bytes);
  const bool of_a = blockIdx.x < blocks_a;
  const TensorOperand& operand = of_a ? args.a : args.b;
  const unsigned block = of_a ? blockIdx.x : blockIdx.x - blocks_a;
  if (!operand.along_k) {
    SplitImage<kPass, SplitRead::kAcross>(operand, block, smem);
  } else if (operand.packs) {
    SplitImage<kPass, SplitRead::kPacks>(operand, block, smem);
  } else {
    SplitImage<kPass, SplitRead::kFloats>(operand, block, smem);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_CUH_
