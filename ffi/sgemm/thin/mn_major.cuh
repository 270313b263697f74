// Products of a short side and an MN-major long side.
//
// Work split: a thread sums four lines of the long side times all lines of the short side. `lanes`
// threads side by side have neighbouring lines, and groups of them take k in turn. Memory: a short
// side of one line is read directly. Otherwise its part of k lies in shared memory, a chunk at a
// time, the lines of one k together. Result: groups add their sums in shared memory by halves, then
// the blocks of a cluster add theirs (StoreSums). Requires: if kPack is 4, stored rows of the long
// side start at 16-byte boundaries. `lanes` is a power of two.
#pragma once

#include <cstdint>

#include "sgemm/thin/short_side.cuh"

namespace jaxkernels {

inline constexpr int kMNMajorChunk = 512;  // k of the short side in shared memory at once

// LinesOfThread is the four lines of a thread: neighbours, or `lanes` apart if rows may be
// unaligned. A missing line is read as the last one; its sums are not stored.
template <int kPack>
struct LinesOfThread {
  int64_t at[kPack == 4 ? 1 : kMNMajorThreadLines];

  __device__ LinesOfThread(int64_t first, int lane, int lanes, int64_t long_lines) {
    if constexpr (kPack == 4) {
      at[0] = min(first + kMNMajorThreadLines * lane, long_lines - kMNMajorThreadLines);
    } else {
#pragma unroll
      for (int j = 0; j < kMNMajorThreadLines; ++j)
        at[j] = min(first + lane + j * lanes, long_lines - 1);
    }
  }
  __device__ void Load(const float* row, float (&v)[kMNMajorThreadLines]) const {
    if constexpr (kPack == 4) {
      LoadQuad(row + at[0], v);
    } else {
#pragma unroll
      for (int j = 0; j < kMNMajorThreadLines; ++j) v[j] = row[at[j]];
    }
  }
  __device__ static int LineOf(int j, int lane, int lanes) {
    return kPack == 4 ? kMNMajorThreadLines * lane + j : lane + j * lanes;
  }
};

template <int kShortLines>
__device__ void AddOuter(const float (&v)[kMNMajorThreadLines], const float* short_side,
                         float (&sums)[kShortLines][kMNMajorThreadLines]) {
  float x[kShortLines];
  if constexpr (kShortLines >= 4) {
#pragma unroll
    for (int f = 0; f < kShortLines; f += 4) LoadQuad(short_side + f, &x[f]);
  } else {
    x[0] = short_side[0];
  }
#pragma unroll
  for (int f = 0; f < kShortLines; ++f) {
#pragma unroll
    for (int j = 0; j < kMNMajorThreadLines; ++j) sums[f][j] = fmaf(v[j], x[f], sums[f][j]);
  }
}

// AddGroups adds the sums of the groups: the upper half of them hands its sums to the lower half,
// until one group is left. `handed`: shared memory for the sums of half of the threads.
template <int kShortLines>
__device__ void AddGroups(int lanes, float* handed,
                          float (&sums)[kShortLines][kMNMajorThreadLines]) {
  const int thread = threadIdx.x;
  for (int half = kThinThreads / 2; half >= lanes; half /= 2) {
    __syncthreads();
    if (thread >= half && thread < 2 * half) {
#pragma unroll
      for (int i = 0; i < kShortLines * kMNMajorThreadLines; ++i) {
        handed[i * half + thread - half] = sums[i / kMNMajorThreadLines][i % kMNMajorThreadLines];
      }
    }
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int i = 0; i < kShortLines * kMNMajorThreadLines; ++i) {
        sums[i / kMNMajorThreadLines][i % kMNMajorThreadLines] += handed[i * half + thread];
      }
    }
  }
}

template <int kShortLines, int kPack>
__global__ void __launch_bounds__(kThinThreads, ThinBlocksPerSm(kShortLines))
    SumMNMajor(const __grid_constant__ ThinArgs args) {
  constexpr bool kStages = kShortLines > 1;
  constexpr int kTree = kShortLines * kMNMajorThreadLines * kThinThreads / 2,
                kStaged = kStages ? kMNMajorChunk * kShortLines : 0;
  __shared__ alignas(16) float staged[kTree > kStaged ? kTree : kStaged];
  __shared__ float sums_of_block[kMNMajorMaxLanes * kMNMajorThreadLines * kShortLines];
  const int lanes = args.lanes, lines_of_block = kMNMajorThreadLines * lanes;
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = kThinThreads / lanes;
  const ThinBlock block = BlockOfThin(args, lines_of_block);
  const LinesOfThread<kPack> lines(block.first_line, lane, lanes, args.long_lines);
  float sums[kShortLines][kMNMajorThreadLines] = {};

  // Rows in flight per thread. Kernels of four lines have room for 4: their SMs hold three blocks.
  constexpr int kAtOnce = kShortLines == 4 ? 4 : 8;
  const int64_t chunk = kStages ? kMNMajorChunk : args.k_per_block;
  for (int64_t begin = 0; begin < block.count_k; begin += chunk) {
    const int64_t count = min(block.count_k - begin, chunk);
    const float* short_side = block.short_side + block.first_k + begin;
    if constexpr (kStages) {
      __syncthreads();
      StageShortSide<kShortLines, 0>(args, block.short_side, block.first_k + begin,
                                     static_cast<int>(count), static_cast<int>(count), staged);
      __syncthreads();
      short_side = staged;
    }
    const float* row = block.long_side + (block.first_k + begin + group) * args.long_lines;
    const int64_t pitch = groups * args.long_lines;
    int64_t k = group;
    for (; k + (kAtOnce - 1) * groups < count; k += kAtOnce * groups) {
      float v[kAtOnce][kMNMajorThreadLines];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) lines.Load(row + i * pitch, v[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        AddOuter<kShortLines>(v[i], short_side + (k + i * groups) * kShortLines, sums);
      row += kAtOnce * pitch;
    }
    for (; k < count; k += groups, row += pitch) {
      float v[kMNMajorThreadLines];
      lines.Load(row, v);
      AddOuter<kShortLines>(v, short_side + k * kShortLines, sums);
    }
  }

  AddGroups(lanes, staged, sums);
  if (static_cast<int>(threadIdx.x) < lanes) {
#pragma unroll
    for (int f = 0; f < kShortLines; ++f) {
      if (f >= args.short_lines) continue;
#pragma unroll
      for (int j = 0; j < kMNMajorThreadLines; ++j) {
        const int line = LinesOfThread<kPack>::LineOf(j, lane, lanes);
        sums_of_block[OffsetOfSum(args, lines_of_block, line, f)] = sums[f][j];
      }
    }
  }
  StoreSums(args, block, lines_of_block, sums_of_block);
}

}  // namespace jaxkernels
