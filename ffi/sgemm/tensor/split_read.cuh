// How a block reads its share of a float32 operand, in either layout.
//
// Owns: which thread has which elements of an image. Must not know: what becomes of them.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_READ_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_READ_CUH_

#include <cstdint>

#include "sgemm/tensor/layout.h"

namespace jaxkernels {

inline constexpr int kSplitThreads = 256;

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
  static constexpr int kLanesOfLine = kRead == SplitRead::kAcross ? 1 : kTensorStepK / kCount;

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
};

template <SplitRead kRead, class Share = SplitShare<kRead>>
__device__ inline void ReadShare(const SplitSource& from, float (&v)[Share::kSets][Share::kCount]) {
  const bool whole = from.lines == kTensorLines && from.depth == kTensorStepK;
#pragma unroll
  for (int i = 0; i < Share::kSets; ++i) {
    const int line = Share::LineOf(i), k = Share::DepthOf(i);
    if (kRead == SplitRead::kPacks && whole) {
      const float4 pack = *reinterpret_cast<const float4*>(from.data + line * from.pitch + k);
      v[i][0] = pack.x;
      v[i][1 % Share::kCount] = pack.y;
      v[i][2 % Share::kCount] = pack.z;
      v[i][3 % Share::kCount] = pack.w;
      continue;
    }
    const bool across = kRead == SplitRead::kAcross;
    const float* const first = from.data + (across ? k * from.pitch + line : line * from.pitch + k);
    const int64_t next = across ? from.pitch : 1;
#pragma unroll
    for (int j = 0; j < Share::kCount; ++j) {
      const bool exists = whole || (line < from.lines && k + j < from.depth);
      v[i][j] = exists ? first[j * next] : 0.0f;
    }
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_READ_CUH_
