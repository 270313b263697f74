// Lines along k by few lines: the long operand is read once, straight into registers.
//
// Work split: a warp sums kAlongLinesOfWarp lines times all few lines at a time; its lanes go over
// k side by side. Memory: the few lines' part of k lies in shared memory, a chunk at a time.
// Result: lanes add up their sums, halving by turns what each of them has, and the blocks of a
// cluster theirs (finish.cuh). Requires: kPack 4: stored rows of the long operand begin at
// multiples of 16 bytes.
#ifndef JAXKERNELS_SGEMM_THIN_ALONG_K_CUH_
#define JAXKERNELS_SGEMM_THIN_ALONG_K_CUH_

#include <cstdint>

#include "sgemm/thin/args.cuh"
#include "sgemm/thin/finish.cuh"

namespace jaxkernels {

// k of the few lines in shared memory at once. Four floats behind each line keep those of a k,
// which are stored at once, in different banks.
template <int kFew>
inline constexpr int kAlongChunk = kFew > 4 ? 512 : 1024;
template <int kFew>
inline constexpr int kAlongPitch = kAlongChunk<kFew> + 4;

// Brings `width` k of the few lines; zeros where there is no such line or k.
template <int kFew>
__device__ void StageFewAlong(const ThinArgs& args, const float* few, int64_t first_k, int count,
                              int width, float* staged) {
  constexpr int kPitch = kAlongPitch<kFew>;
  if (args.few_along_k) {
#pragma unroll 4
    for (int line = 0; line < kFew; ++line) {
      for (int k = threadIdx.x; k < width; k += kThinThreads) {
        const bool exists = line < args.few && k < count;
        staged[line * kPitch + k] = exists ? few[line * args.product.k + first_k + k] : 0.0f;
      }
    }
  } else {
#pragma unroll 2
    for (int i = threadIdx.x; i < width * kFew; i += kThinThreads) {
      const int line = i % kFew, k = i / kFew;
      const bool exists = line < args.few && k < count;
      staged[line * kPitch + k] = exists ? few[(first_k + k) * args.few + line] : 0.0f;
    }
  }
}

// Four k of a line of each lane: neighbours, or 32 apart where lines begin anywhere.
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

// A step of kAlongStepK: `count` of them exist, all of them where kWhole.
template <int kFew, int kPack, bool kWhole>
__device__ void AddStep(const float* const (&lines)[kAlongLinesOfWarp], int64_t at, int count,
                        const float* staged, const LaneOfK<kPack>& lane,
                        float (&sums)[kAlongLinesOfWarp * kFew]) {
  float v[kAlongLinesOfWarp][4];
#pragma unroll
  for (int r = 0; r < kAlongLinesOfWarp; ++r) {
    lane.template Load<kWhole>(lines[r] + at, count, v[r]);
  }
#pragma unroll
  for (int f = 0; f < kFew; ++f) {
    float x[4];
    lane.template Load<true>(staged + f * kAlongPitch<kFew> + at, 0, x);
#pragma unroll
    for (int r = 0; r < kAlongLinesOfWarp; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r * kFew + f] = fmaf(v[r][i], x[i], sums[r * kFew + f]);
    }
  }
}

// Adds up the sums of a warp's lanes. Afterwards lane l has those that begin at l * kCount / 32 in
// the first places, or, if they are less than lanes, some neighbouring lanes have the same one.
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

// As AlongTurns has it.
template <int kFew>
inline constexpr int kAlongTurns = AlongTurns(kFew);

template <int kFew, int kPack>
__global__ void __launch_bounds__(kThinThreads, kFew > 4 ? 2 : 3)
    SumAlongK(const __grid_constant__ ThinArgs args) {
  constexpr int kTurns = kAlongTurns<kFew>, kLines = kTurns * kAlongLinesOfTurn;
  constexpr int kRows = kAlongLinesOfWarp, kSums = kRows * kFew;
  __shared__ alignas(16) float staged[kFew * kAlongPitch<kFew>];
  __shared__ float sums_of_block[kLines * kFew];
  const ThinBlock block = BlockOfThin(args, kLines);
  const int warp = threadIdx.x / 32;
  const LaneOfK<kPack> lane{static_cast<int>(threadIdx.x % 32)};
  for (int i = threadIdx.x; i < kLines * kFew; i += kThinThreads) sums_of_block[i] = 0.0f;

  for (int64_t begin = 0; begin < block.count_k; begin += kAlongChunk<kFew>) {
    const int count = static_cast<int>(min(block.count_k - begin, int64_t{kAlongChunk<kFew>}));
    const int width = (count + kAlongStepK - 1) / kAlongStepK * kAlongStepK;
    __syncthreads();
    StageFewAlong<kFew>(args, block.few, block.first_k + begin, count, width, staged);
    __syncthreads();
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      const int first = turn * kAlongLinesOfTurn + warp * kRows;
      const float* lines[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t line = min(block.first_line + first + r, args.many - 1);
        lines[r] = block.many + line * args.product.k + block.first_k + begin;
      }
      float sums[kSums] = {};
      int k = 0;
#pragma unroll(kFew > 1 ? 1 : 2)
      for (; k + kAlongStepK <= count; k += kAlongStepK) {
        AddStep<kFew, kPack, true>(lines, k, 0, staged, lane, sums);
      }
      if (k < count) AddStep<kFew, kPack, false>(lines, k, count - k, staged, lane, sums);
      AddLanes(lane.lane, sums);
      // Each sum has one thread, in every chunk the same.
      constexpr int kHeld = kSums > 32 ? kSums / 32 : 1, kLanesOfSum = kSums < 32 ? 32 / kSums : 1;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int index = lane.lane / kLanesOfSum * kHeld + i;
        const int line = first + index / kFew, few = index % kFew;
        if (lane.lane % kLanesOfSum == 0 && few < args.few) {
          sums_of_block[PlaceOfSum(args, kLines, line, few)] += sums[i];
        }
      }
    }
  }
  StoreSums(args, block, kLines, sums_of_block);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_ALONG_K_CUH_
