// Product of a short side and an MN-major long side. The long side is read once, straight into
// registers.
//
// Work split: a thread sums four lines of the long side times all lines of the short side. `lanes`
// threads side by side have neighbouring lines, and groups of them take k in turn. Memory: a short
// side of one line is read directly. Otherwise its part of k lies in shared memory, a chunk at a
// time, the lines of one k together. Result: groups add their sums in shared memory by halves, then
// the blocks of a cluster add theirs (finish.cuh). Requires: kPack 4: stored rows of the long side
// start at 16-byte boundaries. `lanes` is a power of two.
#ifndef JAXKERNELS_SGEMM_THIN_ACROSS_K_CUH_
#define JAXKERNELS_SGEMM_THIN_ACROSS_K_CUH_

#include <cstdint>

#include "core/shared_address.cuh"
#include "sgemm/pipelined/async_copy.cuh"
#include "sgemm/thin/args.cuh"
#include "sgemm/thin/finish.cuh"

namespace jaxkernels {

inline constexpr int kAcrossChunk = 512;  // k of the short side in shared memory at once

// StageFewAcross copies `count` k of the short side, all in flight at once. Missing lines are zero.
template <int kFew>
__device__ void StageFewAcross(const ThinArgs& args, const float* few, int64_t first_k, int count,
                               float* staged) {
  for (int i = threadIdx.x; i < count * kFew; i += kThinThreads) {
    const int line = i % kFew, k = i / kFew;
    const bool exists = line < args.few;
    const int64_t from =
        args.few_along_k ? line * args.product.k + first_k + k : (first_k + k) * args.few + line;
    CopyFloatAsync(SharedAddress(staged + i), few + (exists ? from : 0), exists);
  }
  WaitForAllAsync();
}

// LinesOfThread is the four lines of a thread: neighbours, or `lanes` apart if rows may be
// unaligned. A missing line is read as the last one; its sums are not stored.
template <int kPack>
struct LinesOfThread {
  int64_t at[kPack == 4 ? 1 : kAcrossLines];

  __device__ LinesOfThread(int64_t first, int lane, int lanes, int64_t many) {
    if constexpr (kPack == 4) {
      at[0] = min(first + kAcrossLines * lane, many - kAcrossLines);
    } else {
#pragma unroll
      for (int j = 0; j < kAcrossLines; ++j) at[j] = min(first + lane + j * lanes, many - 1);
    }
  }
  __device__ void Load(const float* row, float (&v)[kAcrossLines]) const {
    if constexpr (kPack == 4) {
      const float4 pack = *reinterpret_cast<const float4*>(row + at[0]);
      v[0] = pack.x, v[1] = pack.y, v[2] = pack.z, v[3] = pack.w;
    } else {
#pragma unroll
      for (int j = 0; j < kAcrossLines; ++j) v[j] = row[at[j]];
    }
  }
  __device__ static int LineOf(int j, int lane, int lanes) {
    return kPack == 4 ? kAcrossLines * lane + j : lane + j * lanes;
  }
};

template <int kFew>
__device__ void AddOuter(const float (&v)[kAcrossLines], const float* few,
                         float (&sums)[kFew][kAcrossLines]) {
  float x[kFew];
  if constexpr (kFew >= 4) {
#pragma unroll
    for (int f = 0; f < kFew; f += 4) {
      const float4 pack = *reinterpret_cast<const float4*>(few + f);
      x[f] = pack.x, x[f + 1] = pack.y, x[f + 2] = pack.z, x[f + 3] = pack.w;
    }
  } else {
    x[0] = few[0];
  }
#pragma unroll
  for (int f = 0; f < kFew; ++f) {
#pragma unroll
    for (int j = 0; j < kAcrossLines; ++j) sums[f][j] = fmaf(v[j], x[f], sums[f][j]);
  }
}

template <int kFew, int kPack>
__global__ void __launch_bounds__(kThinThreads, kThinBlocksPerSm)
    SumAcrossK(const __grid_constant__ ThinArgs args) {
  constexpr int kHalf = kThinThreads / 2;
  constexpr bool kStages = kFew > 1;
  constexpr int kTree = kFew * kAcrossLines * kHalf, kStaged = kStages ? kAcrossChunk * kFew : 0;
  __shared__ alignas(16) float staged[kTree > kStaged ? kTree : kStaged];
  __shared__ float sums_of_block[kAcrossMostLanes * kAcrossLines * kFew];
  const int lanes = args.lanes, lines_of_block = kAcrossLines * lanes;
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = kThinThreads / lanes;
  const ThinBlock block = BlockOfThin(args, lines_of_block);
  const LinesOfThread<kPack> lines(block.first_line, lane, lanes, args.many);
  float sums[kFew][kAcrossLines] = {};

  constexpr int kAtOnce = kStages ? 4 : 8;  // rows in flight per thread
  const int64_t chunk = kStages ? kAcrossChunk : args.k_per_block;
  for (int64_t begin = 0; begin < block.count_k; begin += chunk) {
    const int64_t count = min(block.count_k - begin, chunk);
    const float* few = block.few + block.first_k + begin;
    if constexpr (kStages) {
      __syncthreads();
      StageFewAcross<kFew>(args, block.few, block.first_k + begin, static_cast<int>(count), staged);
      __syncthreads();
      few = staged;
    }
    const float* row = block.many + (block.first_k + begin + group) * args.many;
    const int64_t pitch = groups * args.many;
    int64_t k = group;
    for (; k + (kAtOnce - 1) * groups < count; k += kAtOnce * groups) {
      float v[kAtOnce][kAcrossLines];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) lines.Load(row + i * pitch, v[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) AddOuter<kFew>(v[i], few + (k + i * groups) * kFew, sums);
      row += kAtOnce * pitch;
    }
    for (; k < count; k += groups, row += pitch) {
      float v[kAcrossLines];
      lines.Load(row, v);
      AddOuter<kFew>(v, few + k * kFew, sums);
    }
  }

  // The upper half of the groups hands its sums to the lower half, until one group is left.
  const int thread = threadIdx.x;
  for (int half = kHalf; half >= lanes; half /= 2) {
    __syncthreads();
    if (thread >= half && thread < 2 * half) {
#pragma unroll
      for (int i = 0; i < kFew * kAcrossLines; ++i) {
        staged[i * half + thread - half] = sums[i / kAcrossLines][i % kAcrossLines];
      }
    }
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int i = 0; i < kFew * kAcrossLines; ++i) {
        sums[i / kAcrossLines][i % kAcrossLines] += staged[i * half + thread];
      }
    }
  }
  if (thread < lanes) {
#pragma unroll
    for (int f = 0; f < kFew; ++f) {
      if (f >= args.few) continue;
#pragma unroll
      for (int j = 0; j < kAcrossLines; ++j) {
        const int line = LinesOfThread<kPack>::LineOf(j, lane, lanes);
        sums_of_block[PlaceOfSum(args, lines_of_block, line, f)] = sums[f][j];
      }
    }
  }
  StoreSums(args, block, lines_of_block, sums_of_block);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_ACROSS_K_CUH_
