// Lines across k, and those that are longer than registers: an image at a time, in two passes.
//
// Owns: what a block does in either pass. Must not know: the product, how operands are read
// (split_read.cuh).
//
// Work split: a block has an image (layout.h), of 128 lines x 64 k. The scale of a line needs the
// largest element of all its images, so there are two launches. One alone, whose blocks keep what
// they have read and wait for each other, took 92 instead of 106 us at 4096^3 (H200, 2026-11); but
// the waiting blocks of several products at once could fill the GPU, and none would end.
//
// Memory: 32 floats a thread; the image passes through shared memory and leaves as one bulk copy.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_IMAGES_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_IMAGES_CUH_

#include "core/shared_address.cuh"
#include "sgemm/tensor/split_read.cuh"

namespace jaxkernels {

// Images: the first finds the largest elements, the second makes pairs.
enum class SplitPass { kFirst, kSecond };

struct SplitSmem {
  alignas(128) char image[kTensorImageBytes];
  LineScale scales[kTensorLines];
  uint32_t maxima[kTensorLines];
  uint32_t norms[kTensorLines];
  uint32_t marks[kTensorLines];
};

// Neighbouring lanes that have one line, in any set.
template <class Share>
inline constexpr int kLanesTogether = Share::kLanesOfLine < 32 ? Share::kLanesOfLine : 32;

// The largest elements of the image's lines, into shared memory, which is zero before.
template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void FindMaxima(const float (&v)[Share::kSets][Share::kCount], SplitSmem& smem) {
  constexpr int kLanes = kLanesTogether<Share>;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
#pragma unroll
    for (int j = 0; j < Share::kCount; ++j) largest = max(largest, FiniteBits(v[i][j]));
    if (Share::kOneLine && i + 1 < Share::kSets) continue;
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lanes));
    }
    if (threadIdx.x % kLanes == 0) atomicMax(&smem.maxima[Share::LineOf(i)], largest);
    largest = 0;
  }
}

// The image in shared memory, and what is known of its lines.
template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void MakePairs(const float (&v)[Share::kSets][Share::kCount], SplitSmem& smem) {
  constexpr int kLanes = kLanesTogether<Share>;
  LineFacts facts;
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
    const int line = Share::LineOf(i);
    StorePairs<Share::kCount>(smem.image, line, Share::DepthOf(i), v[i], smem.scales[line], facts);
    if (Share::kOneLine && i + 1 < Share::kSets) continue;
    if (facts.marked) smem.marks[line] = 1;
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      facts.norm += __shfl_xor_sync(~0u, facts.norm, lanes);
    }
    if (threadIdx.x % kLanes == 0) atomicAdd(&smem.norms[line], facts.norm);
    facts = {};
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

// What the thread has written to shared memory is there for copies, after a barrier.
__device__ inline void FenceForBulkCopy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
  if constexpr (kPass == SplitPass::kFirst) {
    if (has_line) smem.maxima[threadIdx.x] = 0;
    __syncthreads();
    FindMaxima<kRead>(v, smem);
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
  MakePairs<kRead>(v, smem);
  FenceForBulkCopy();
  __syncthreads();
  if (has_line) {
    if (smem.marks[threadIdx.x] != 0) KeepMark(operand, number);
    KeepNorm(operand, number, smem.norms[threadIdx.x]);
  } else if (threadIdx.x == kTensorLines) {
    CopyImageOut(operand.images + int64_t{block} * kTensorImageBytes, smem);
  }
}

template <SplitPass kPass>
__device__ inline void SplitImageOf(const TensorOperand& operand, unsigned block, SplitSmem& smem) {
  if (!operand.along_k) {
    SplitImage<kPass, SplitRead::kAcross>(operand, block, smem);
  } else if (operand.packs) {
    SplitImage<kPass, SplitRead::kPacks>(operand, block, smem);
  } else {
    SplitImage<kPass, SplitRead::kFloats>(operand, block, smem);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_IMAGES_CUH_
