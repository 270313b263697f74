// Products of a short side and a K-major long side.
//
// Work split: a warp sums kKMajorWarpLines lines of the long side times all lines of the short
// side at a time, with its lanes side by side along k. Memory: a short side of several lines lies
// in shared memory, a chunk of k at a time. Result: lanes add their sums and halve in each step the
// sums that they hold, then the blocks of a cluster add theirs (StoreSums). Requires: if kPack is
// 4, stored rows of the long side, and a single short line, start at 16-byte boundaries.
#pragma once

#include <cstdint>

#include "sgemm/thin/short_side.cuh"

namespace jaxkernels {

// k of the short side in shared memory at once. Four floats of padding after each line put the
// lines of one k, which are stored at once, into different banks.
inline constexpr int kKMajorChunk = 1024, kKMajorPitch = kKMajorChunk + 4;

// LaneOfK is four k of a line per lane: neighbours, or 32 apart if rows may be unaligned.
template <int kPack>
struct LaneOfK {
  static constexpr int kStride = kPack == 4 ? 1 : 32;
  int lane;

  __device__ int First() const { return kPack == 4 ? 4 * lane : lane; }

  template <bool kWhole>
  __device__ void Load(const float* line, int count, float (&v)[4]) const {
    if constexpr (kPack == 4) {
      float4 pack = {};
      if (kWhole || First() < count) pack = *reinterpret_cast<const float4*>(line + First());
      v[0] = pack.x, v[1] = pack.y, v[2] = pack.z, v[3] = pack.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = First() + i * kStride;
        v[i] = kWhole || k < count ? line[k] : 0.0f;
      }
    }
  }
};

// AddStep adds a step of kKMajorStepK k. If not kWhole, only `count` of them exist. The staged
// lines of a short side have zeros after their end; a single line has none.
template <int kShortLines, int kPack, bool kWhole>
__device__ void AddStep(const float* const (&lines)[kKMajorWarpLines], int64_t at, int count,
                        const float* short_side, const LaneOfK<kPack>& lane,
                        float (&sums)[kKMajorWarpLines * kShortLines]) {
  float v[kKMajorWarpLines][4];
#pragma unroll
  for (int r = 0; r < kKMajorWarpLines; ++r) {
    lane.template Load<kWhole>(lines[r] + at, count, v[r]);
  }
#pragma unroll
  for (int f = 0; f < kShortLines; ++f) {
    float x[4];
    lane.template Load<kWhole || (kShortLines > 1)>(short_side + f * kKMajorPitch + at, count, x);
#pragma unroll
    for (int r = 0; r < kKMajorWarpLines; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[r * kShortLines + f] = fmaf(v[r][i], x[i], sums[r * kShortLines + f]);
    }
  }
}

// AddLanes adds kCount sums over the lanes of a warp. Afterwards sums[0] of lane l is sum number l
// * kCount / 32.
template <int kCount>
__device__ void AddLanes(int lane, float (&sums)[kCount]) {
  constexpr unsigned kAllLanes = 0xffffffff;
  int held = kCount;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (held > 1) {
      held /= 2;
      const bool keeps_upper = (lane & offset) != 0;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i >= held) continue;
        const float kept = keeps_upper ? sums[i + held] : sums[i];
        const float given = keeps_upper ? sums[i] : sums[i + held];
        sums[i] = kept + __shfl_xor_sync(kAllLanes, given, offset);
      }
    } else {
      sums[0] += __shfl_xor_sync(kAllLanes, sums[0], offset);
    }
  }
}

template <int kShortLines, int kPack>
__global__ void __launch_bounds__(kThinThreads, ThinBlocksPerSm(kShortLines))
    SumKMajor(const __grid_constant__ ThinArgs args) {
  constexpr int kRows = kKMajorWarpLines, kSums = kRows * kShortLines;
  constexpr bool kStages = kShortLines > 1;
  __shared__ alignas(16) float staged[kStages ? kShortLines * kKMajorPitch : 1];
  __shared__ float sums_of_block[kKMajorMaxIterations * kKMajorIterationLines * kShortLines];
  const int lines_of_block = args.iterations * kKMajorIterationLines;
  const ThinBlock block = BlockOfThin(args, lines_of_block);
  const int warp = threadIdx.x / 32;
  const LaneOfK<kPack> lane{static_cast<int>(threadIdx.x % 32)};
  for (int i = threadIdx.x; i < lines_of_block * kShortLines; i += kThinThreads)
    sums_of_block[i] = 0.0f;
  __syncthreads();

  const int64_t chunk = kStages ? kKMajorChunk : args.k_per_block;
  for (int64_t begin = 0; begin < block.count_k; begin += chunk) {
    const int64_t count = min(block.count_k - begin, chunk);
    const float* short_side = block.short_side + block.first_k + begin;
    if constexpr (kStages) {
      const int width = static_cast<int>((count + kKMajorStepK - 1) / kKMajorStepK * kKMajorStepK);
      if (begin > 0) __syncthreads();
      StageShortSide<kShortLines, kKMajorPitch>(args, block.short_side, block.first_k + begin,
                                                static_cast<int>(count), width, staged);
      __syncthreads();
      short_side = staged;
    }
#pragma unroll 1
    for (int iteration = 0; iteration < args.iterations; ++iteration) {
      const int first = iteration * kKMajorIterationLines + warp * kRows;
      if (block.first_line + first >= args.long_lines) break;
      const float* lines[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t line = min(block.first_line + first + r, args.long_lines - 1);
        lines[r] = block.long_side + line * args.product.k + block.first_k + begin;
      }
      float sums[kSums] = {};
      int64_t k = 0;
#pragma unroll(kShortLines > 1 ? 1 : 2)
      for (; k + kKMajorStepK <= count; k += kKMajorStepK) {
        AddStep<kShortLines, kPack, true>(lines, k, 0, short_side, lane, sums);
      }
      if (k < count) {
        const int rest = static_cast<int>(count - k);
        AddStep<kShortLines, kPack, false>(lines, k, rest, short_side, lane, sums);
      }
      AddLanes(lane.lane, sums);
      // Each sum has one thread, the same in every chunk.
      constexpr int kLanesOfSum = 32 / kSums;
      const int line = first + lane.lane / kLanesOfSum / kShortLines;
      const int short_line = lane.lane / kLanesOfSum % kShortLines;
      if (lane.lane % kLanesOfSum == 0 && short_line < args.short_lines) {
        sums_of_block[OffsetOfSum(args, lines_of_block, line, short_line)] += sums[0];
      }
    }
  }
  StoreSums(args, block, lines_of_block, sums_of_block);
}

}  // namespace jaxkernels
