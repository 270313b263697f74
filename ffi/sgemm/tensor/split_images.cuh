// Splits MN-major operands: one image at a time, in two passes.
//
// Owns: the elements of a thread, and the work of a block in either pass. Must not know: the
// product, K-major operands.
//
// Work split: a block has one image (layout.h) of 128 lines x 64 k. The scale of a line needs the
// largest element of all its images, so there are two launches. One launch, whose blocks keep their
// elements and wait for each other, took 92 instead of 106 us at 4096^3 (H200, 2026-11). But the
// waiting blocks of several products at once could fill the GPU, and none would end.
//
// Memory: 32 floats a thread. The image passes through shared memory and leaves as one bulk copy.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_IMAGES_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_IMAGES_CUH_

#include "core/shared_address.cuh"
#include "sgemm/tensor/split_pairs.cuh"

namespace jaxkernels {

// SplitPass: the first pass finds the largest elements, the second makes pairs.
enum class SplitPass { kFirst, kSecond };

struct SplitSmem {
  alignas(128) char image[kTensorImageBytes];
  LineScale scales[kTensorLines];
  uint32_t maxima[kTensorLines];
  uint32_t norms[kTensorLines];
  uint32_t marks[kTensorLines];
};

// ImageShare: a thread has sets of neighbouring k of one line, and neighbouring lanes have
// neighbouring lines. Loads are coalesced, and stores to the image have no bank conflicts.
struct ImageShare {
  static constexpr int kCount = 8;
  static constexpr int kSets = kTensorLines * kTensorStepK / kSplitThreads / kCount;
  using Values = float[kSets][kCount];

  static __device__ int Line() { return threadIdx.x % kTensorLines; }
  static __device__ int DepthOf(int set) {
    return (threadIdx.x / kTensorLines * kSets + set) * kCount;
  }
};

// SplitSource is the elements of one image; lines x depth of them exist.
struct SplitSource {
  const float* data;
  int64_t pitch;
  int lines, depth;
};

__device__ inline void ReadShare(const SplitSource& from, ImageShare::Values& v) {
  const int line = ImageShare::Line();
  if (from.lines == kTensorLines && from.depth == kTensorStepK) {
    // Loads without a condition are all in flight at once.
#pragma unroll
    for (int i = 0; i < ImageShare::kSets; ++i) {
      const float* const first = from.data + (ImageShare::DepthOf(i) * from.pitch + line);
#pragma unroll
      for (int j = 0; j < ImageShare::kCount; ++j) v[i][j] = first[j * from.pitch];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < ImageShare::kSets; ++i) {
    const int k = ImageShare::DepthOf(i);
    const float* const first = from.data + (k * from.pitch + line);
#pragma unroll
    for (int j = 0; j < ImageShare::kCount; ++j) {
      const bool exists = line < from.lines && k + j < from.depth;
      v[i][j] = exists ? first[j * from.pitch] : 0.0f;
    }
  }
}

// FindMaxima merges the largest elements of the image's lines into shared memory, which is zero
// before.
__device__ inline void FindMaxima(const ImageShare::Values& v, SplitSmem& smem) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < ImageShare::kSets; ++i) {
#pragma unroll
    for (int j = 0; j < ImageShare::kCount; ++j) largest = max(largest, FiniteBits(v[i][j]));
  }
  atomicMax(&smem.maxima[ImageShare::Line()], largest);
}

// MakePairs fills the image in shared memory, and collects facts about its lines.
__device__ inline void MakePairs(const ImageShare::Values& v, SplitSmem& smem) {
  const int line = ImageShare::Line();
  LineFacts facts;
#pragma unroll
  for (int i = 0; i < ImageShare::kSets; ++i) {
    StorePairs<ImageShare::kCount>(smem.image, line, ImageShare::DepthOf(i), v[i],
                                   smem.scales[line], facts);
  }
  if (facts.marked) smem.marks[line] = 1;
  atomicAdd(&smem.norms[line], facts.norm);
}

// CopyImageOut copies from shared to global memory. The thread waits until shared memory has been
// read.
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

// FenceForBulkCopy makes the thread's writes to shared memory visible to copies after a barrier.
__device__ inline void FenceForBulkCopy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

template <SplitPass kPass>
__device__ inline void SplitImage(const TensorOperand& operand, unsigned block, SplitSmem& smem) {
  const int step = block % operand.steps, tile = block / operand.steps;
  const int member = tile / operand.tiles;
  const int64_t line = int64_t{tile % operand.tiles} * kTensorLines;
  const int64_t begin = int64_t{step} * kTensorStepK;
  const int64_t number = int64_t{tile} * kTensorLines + threadIdx.x;  // of the thread's line
  const bool has_line = threadIdx.x < kTensorLines;
  const SplitSource from = {
      operand.data + member * operand.MemberElements() + begin * operand.pitch + line,
      operand.pitch, static_cast<int>(min(operand.lines - line, int64_t{kTensorLines})),
      static_cast<int>(min(operand.depth - begin, int64_t{kTensorStepK}))};
  ImageShare::Values v;
  ReadShare(from, v);
  if constexpr (kPass == SplitPass::kFirst) {
    if (has_line) smem.maxima[threadIdx.x] = 0;
    __syncthreads();
    FindMaxima(v, smem);
    __syncthreads();
    if (has_line) atomicMax(&operand.maxima[number], smem.maxima[threadIdx.x]);
    return;
  }
  if (has_line) {
    smem.marks[threadIdx.x] = smem.norms[threadIdx.x] = 0;
    const LineScale scale = ScaleOfMaximum(operand.maxima[number]);
    smem.scales[threadIdx.x] = scale;
    if (step == 0) KeepScale(operand, number, scale);
  }
  __syncthreads();
  MakePairs(v, smem);
  FenceForBulkCopy();
  __syncthreads();
  if (has_line) {
    if (smem.marks[threadIdx.x] != 0) KeepMark(operand, number);
    KeepNorm(operand, number, smem.norms[threadIdx.x]);
  } else if (threadIdx.x == kTensorLines) {
    CopyImageOut(operand.images + int64_t{block} * kTensorImageBytes, smem);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_IMAGES_CUH_
