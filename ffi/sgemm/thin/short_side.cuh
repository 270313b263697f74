// Products of a short side and a long side, K-major or MN-major, which is read once, straight into
// registers: kernel arguments, the work of a block, its stores, and a kernel for each layout.
//
// Owns: the roles of the operands, and the sum over the blocks that share k. The long side has many
// lines, the short side has few. A line is a row of op(A) or a column of op(B).
#ifndef JAXKERNELS_SGEMM_THIN_SHORT_SIDE_CUH_
#define JAXKERNELS_SGEMM_THIN_SHORT_SIDE_CUH_

#include <cstdint>

#include "core/cluster.cuh"
#include "core/shared_address.cuh"
#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/pipelined/async_copy.cuh"

namespace jaxkernels {

// ThinArgs is passed to kernels by value.
struct ThinArgs {
  SgemmArgs product;
  bool long_is_a;      // A is the long side and B the short one; or the other way round
  bool short_k_major;  // the short side is K-major
  int short_lines;
  int lanes;       // kMNMajor: threads side by side along the lines
  int iterations;  // kKMajor: iterations of a block over its lines
  int64_t long_lines;
  int64_t k_per_block;  // of a block; the last ones may have less, or none
  unsigned groups;      // groups of lines, with `parts` blocks each
  unsigned parts;       // blocks that share a group's k: clusters, one after the other
  int64_t batch_count;
};

// ThinBlock is the lines of a block and its share of k.
struct ThinBlock {
  const float* long_side;  // of the block's batch member
  const float* short_side;
  int64_t batch_index;
  int64_t first_line;
  int64_t first_k, count_k;  // count_k <= 0: the block has nothing to sum
  unsigned part;
};

__device__ inline ThinBlock BlockOfThin(const ThinArgs& args, int lines_of_block) {
  ThinBlock block;
  const unsigned group = blockIdx.x / args.parts;
  block.part = blockIdx.x % args.parts;
  block.batch_index = group / args.groups;
  block.first_line = int64_t{group % args.groups} * lines_of_block;
  block.first_k = block.part * args.k_per_block;
  block.count_k = min(args.k_per_block, args.product.k - block.first_k);
  const MatrixIndices matrices = MatrixIndicesOf(args.product, static_cast<int>(block.batch_index));
  const float* const a = args.product.a + matrices.a * args.product.m * args.product.k;
  const float* const b = args.product.b + matrices.b * args.product.n * args.product.k;
  block.long_side = args.long_is_a ? a : b;
  block.short_side = args.long_is_a ? b : a;
  return block;
}

// StageShortSide copies `width` k of the short side to shared memory, all in flight at once.
// Missing lines, and k from `count` on, are zero. Lines are kLinePitch floats apart; if that is 0,
// the lines of one k lie together, and width is count.
template <int kShortLines, int kLinePitch>
__device__ void StageShortSide(const ThinArgs& args, const float* short_side, int64_t first_k,
                               int count, int width, float* staged) {
  constexpr bool kByLine = kLinePitch > 0;
  for (int i = threadIdx.x; i < width * kShortLines; i += kThinThreads) {
    const int line = kByLine && args.short_k_major ? i / width : i % kShortLines;
    const int k = kByLine && args.short_k_major ? i % width : i / kShortLines;
    const bool valid = line < args.short_lines && (!kByLine || k < count);
    const int64_t from = args.short_k_major ? line * args.product.k + first_k + k
                                            : (first_k + k) * args.short_lines + line;
    CopyFloatAsync(SharedAddress(staged + (kByLine ? line * kLinePitch + k : i)),
                   short_side + (valid ? from : 0), valid);
  }
  WaitForAllAsync();
}

// OffsetOfSum returns the place in shared memory of the sum of two lines. The order is that of C,
// so that neighbouring threads store neighbours.
__device__ inline int OffsetOfSum(const ThinArgs& args, int lines_of_block, int line,
                                  int short_line) {
  return args.long_is_a ? line * args.short_lines + short_line : short_line * lines_of_block + line;
}

// StoreSums adds the sums of the blocks that share k, and stores them. The blocks of a cluster read
// each other's sums in shared memory. Each block adds some of the elements, always in the order of
// k. If k is also split over clusters, ReduceSplits adds the sums that they store.
// Requires: all threads of the cluster call it. The sums need no barrier before.
__device__ inline void StoreSums(const ThinArgs& args, const ThinBlock& block, int lines_of_block,
                                 const float* sums) {
  const SgemmArgs& product = args.product;
  const int blocks = ClusterBlocks(), rank = ClusterRank();
  const unsigned splits = args.parts / blocks, split = block.part / blocks;
  const int64_t elements = product.m * product.n;
  const int64_t batch_offset = block.batch_index * elements;
  WaitForCluster();
  for (int i = rank * kThinThreads + threadIdx.x; i < lines_of_block * args.short_lines;
       i += blocks * kThinThreads) {
    const int line = args.long_is_a ? i / args.short_lines : i % lines_of_block;
    if (block.first_line + line >= args.long_lines) continue;
    float sum = 0.0f;
    for (int r = 0; r < blocks; ++r) sum += LoadFromBlock(&sums[i], r);
    const int64_t offset = args.long_is_a
                               ? block.first_line * args.short_lines + i
                               : i / lines_of_block * args.long_lines + block.first_line + line;
    if (splits > 1) {
      product.partial[split * args.batch_count * elements + batch_offset + offset] = sum;
    } else {
      const int64_t at = batch_offset + offset;
      product.out[at] = LinearCombinationAt(product.alpha, sum, product.beta, product.c + at);
    }
  }
  if (blocks > 1) WaitForCluster();  // other blocks may still read these sums
}

// ---- K-major long side ----
//
// Work split: a warp sums kKMajorWarpLines lines of the long side times all lines of the short
// side at a time, with its lanes side by side along k. Memory: a short side of several lines lies
// in shared memory, a chunk of k at a time. Result: lanes add their sums and halve in each step the
// sums that they hold, then the blocks of a cluster add theirs (StoreSums). Requires: kPack 4:
// stored rows of the long side start at 16-byte boundaries.

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
__global__ void __launch_bounds__(kThinThreads, kThinBlocksPerSm)
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
        AddStep<kShortLines, kPack, false>(lines, k, static_cast<int>(count - k), short_side, lane,
                                           sums);
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

// ---- MN-major long side ----
//
// Work split: a thread sums four lines of the long side times all lines of the short side. `lanes`
// threads side by side have neighbouring lines, and groups of them take k in turn. Memory: a short
// side of one line is read directly. Otherwise its part of k lies in shared memory, a chunk at a
// time, the lines of one k together. Result: groups add their sums in shared memory by halves, then
// the blocks of a cluster add theirs (StoreSums). Requires: kPack 4: stored rows of the long side
// start at 16-byte boundaries. `lanes` is a power of two.

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

template <int kShortLines, int kPack>
__global__ void __launch_bounds__(kThinThreads, kThinBlocksPerSm)
    SumMNMajor(const __grid_constant__ ThinArgs args) {
  constexpr int kHalf = kThinThreads / 2;
  constexpr bool kStages = kShortLines > 1;
  constexpr int kTree = kShortLines * kMNMajorThreadLines * kHalf,
                kStaged = kStages ? kMNMajorChunk * kShortLines : 0;
  __shared__ alignas(16) float staged[kTree > kStaged ? kTree : kStaged];
  __shared__ float sums_of_block[kMNMajorMaxLanes * kMNMajorThreadLines * kShortLines];
  const int lanes = args.lanes, lines_of_block = kMNMajorThreadLines * lanes;
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = kThinThreads / lanes;
  const ThinBlock block = BlockOfThin(args, lines_of_block);
  const LinesOfThread<kPack> lines(block.first_line, lane, lanes, args.long_lines);
  float sums[kShortLines][kMNMajorThreadLines] = {};

  constexpr int kAtOnce = kStages ? 4 : 8;  // rows in flight per thread
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

  // The upper half of the groups hands its sums to the lower half, until one group is left.
  const int thread = threadIdx.x;
  for (int half = kHalf; half >= lanes; half /= 2) {
    __syncthreads();
    if (thread >= half && thread < 2 * half) {
#pragma unroll
      for (int i = 0; i < kShortLines * kMNMajorThreadLines; ++i) {
        staged[i * half + thread - half] = sums[i / kMNMajorThreadLines][i % kMNMajorThreadLines];
      }
    }
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int i = 0; i < kShortLines * kMNMajorThreadLines; ++i) {
        sums[i / kMNMajorThreadLines][i % kMNMajorThreadLines] += staged[i * half + thread];
      }
    }
  }
  if (thread < lanes) {
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

#endif  // JAXKERNELS_SGEMM_THIN_SHORT_SIDE_CUH_
