// How a block reads the elements of an image from a float32 operand, in either layout.
//
// Owns: which thread has which elements of an image. Must not know: what becomes of them.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_READ_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_READ_CUH_

#include "sgemm/tensor/split_pairs.cuh"

namespace jaxkernels {

// How the threads of a block share an image: a thread has kSets times kCount neighbouring k of a
// line. Loads of a warp are side by side in memory, stores to the image free of bank conflicts.
//   kAcross   lines are neighbours in memory: neighbouring lanes have neighbouring lines
//   kPacks    k are, and lines begin at multiples of 16 bytes
//   kFloats   k are
enum class SplitRead { kAcross, kPacks, kFloats };

template <SplitRead kRead>
struct SplitShare {
  static constexpr int kCount = kRead == SplitRead::kAcross  ? 8
                                : kRead == SplitRead::kPacks ? 4
                                                             : 1;
  static constexpr int kSets = kTensorLines * kTensorStepK / kSplitThreads / kCount;
  static constexpr bool kOneLine = kRead == SplitRead::kAcross;  // in all sets of a thread
  static constexpr int kLanesOfLine = kOneLine ? 1 : kTensorStepK / kCount;

  static __device__ int LineOf(int set) {
    if constexpr (kRead == SplitRead::kAcross) return threadIdx.x % kTensorLines;
    return threadIdx.x / kLanesOfLine + set * (kSplitThreads / kLanesOfLine);
  }
  static __device__ int DepthOf(int set) {
    if constexpr (kRead == SplitRead::kAcross) {
      return (threadIdx.x / kTensorLines * kSets + set) * kCount;
    }
    return threadIdx.x % kLanesOfLine * kCount;
  }
};

// Elements of one image: lines x depth of it exist.
struct SplitSource {
  const float* data;
  int64_t pitch;
  int lines, depth;

  template <SplitRead kRead>
  __device__ const float* PlaceOf(int line, int k) const {
    return data + (kRead == SplitRead::kAcross ? k * pitch + line : line * pitch + k);
  }
  // From one k to the next.
  template <SplitRead kRead>
  __device__ int64_t NextOf() const {
    return kRead == SplitRead::kAcross ? pitch : 1;
  }
};

// All elements exist: loads without a condition, so that they are under way at once.
template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void ReadWholeShare(const SplitSource& from,
                                      float (&v)[Share::kSets][Share::kCount]) {
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
    const float* const first = from.PlaceOf<kRead>(Share::LineOf(i), Share::DepthOf(i));
    if constexpr (kRead == SplitRead::kPacks) {
      const float4 pack = *reinterpret_cast<const float4*>(first);
      v[i][0] = pack.x, v[i][1] = pack.y, v[i][2] = pack.z, v[i][3] = pack.w;
    } else {
#pragma unroll
      for (int j = 0; j < Share::kCount; ++j) v[i][j] = first[j * from.NextOf<kRead>()];
    }
  }
}

template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void ReadShare(const SplitSource& from, float (&v)[Share::kSets][Share::kCount]) {
  if (from.lines == kTensorLines && from.depth == kTensorStepK) {
    ReadWholeShare<kRead>(from, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
    const int line = Share::LineOf(i), k = Share::DepthOf(i);
    const float* const first = from.PlaceOf<kRead>(line, k);
#pragma unroll
    for (int j = 0; j < Share::kCount; ++j) {
      const bool exists = line < from.lines && k + j < from.depth;
      v[i][j] = exists ? first[j * from.NextOf<kRead>()] : 0.0f;
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_READ_CUH_
