// The top FFMA rung: tiles arrive asynchronously, several stages ahead, and almost every
// instruction is an FFMA.
//
// Work split: a block computes block_m x block_n of C over its share of k. A thread computes
// thread_m x thread_n of it, in quads of 4 rows x 4 columns that lie apart, as in split_tile.
// Memory: on Hopper and later, the tensor memory accelerator (TMA) fills the stages (stages.cuh). A
// thread holds thread_m x thread_n sums and two generations of fragments in registers.
//
// Limits: an SM sub-partition issues one instruction a cycle and reads two registers a cycle, one
// from each bank. An FFMA has three operands, so one must come from the reuse cache of the previous
// instruction. It does if the FFMA follow a row of the thread tile (outer_product.cuh). Each k then
// takes, on an H200 (2026-11, 8x16 thread tile), 128 FFMA, 6 fragment loads and 9 bank conflicts.
#pragma once

#include <type_traits>

#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/pipelined/fragments.cuh"
#include "sgemm/pipelined/stages.cuh"
#include "sgemm/rungs/outer_product.cuh"

namespace jaxkernels {

// PipelinedGrid tells how blocks share the work. Divisors have 32 bits, because 64-bit divisions
// would take longer than a small tile.
struct PipelinedGrid {
  unsigned tiles_m, tiles_n, split_k;
  unsigned batch;
  unsigned part;        // index of the launch, if several launches share k
  int64_t k_per_split;  // a multiple of block_k
  unsigned sm_count;
  unsigned stagger_cycles;  // start delay of the second block of an SM
};

// StaggerSecondBlock starts the second block of an SM late. It assumes that the first sm_count
// blocks run on different SMs. Both blocks of an SM take equally long. If they start together they
// store their sums together, every time, and no arithmetic runs meanwhile.
__device__ inline void StaggerSecondBlock(const PipelinedGrid& grid) {
  if (grid.stagger_cycles == 0 || blockIdx.x / grid.sm_count != 1) return;
  const long long begin = clock64();
  while (clock64() - begin < grid.stagger_cycles) __nanosleep(100);
}

// kGroupM is the tile rows of a group. Blocks visit a group column by column, so that concurrent
// blocks share lines of A and of B in the L2.
inline constexpr unsigned kGroupM = 8;

struct WorkTile {
  unsigned tile_m, tile_n, split, batch_index;
};

// WorkTileOf is the tile scheduler. Its divisions delay the first copy of a block; a small product
// needs only one.
__device__ inline WorkTile WorkTileOf(const PipelinedGrid& grid) {
  WorkTile work = {};
  unsigned index = blockIdx.x;
  const unsigned tiles = grid.tiles_m * grid.tiles_n;
  if (gridDim.x > tiles) {
    const unsigned rest = index / tiles;
    index %= tiles;
    work.split = rest % grid.split_k;
    work.batch_index = rest / grid.split_k;
  }
  unsigned rows = grid.tiles_m;
  if (rows > kGroupM) {
    const unsigned tiles_of_group = kGroupM * grid.tiles_n;
    work.tile_m = index / tiles_of_group * kGroupM;
    index %= tiles_of_group;
    rows = min(kGroupM, grid.tiles_m - work.tile_m);
  }
  work.tile_m += index % rows;
  work.tile_n = index / rows;
  return work;
}

template <int kTile, Engine kEngine, bool kKMajorA, bool kKMajorB>
struct Pipelined {
  static constexpr PipelinedTile kShape = kPipelinedTiles[kTile];
  static constexpr PipelinedStages kStaging = StagesOf(kShape, kEngine, kKMajorA, kKMajorB);
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n;
  static constexpr int kThreadM = kShape.thread_m, kThreadN = kShape.thread_n;
  static constexpr int kBlockK = kStaging.block_k, kStages = kStaging.stages;
  static constexpr int kSlices = kShape.slices, kThreadsOfSlice = kShape.ThreadsOfSlice();
  static constexpr int kThreads = kThreadsOfSlice * kSlices;
  static constexpr int kLanesM = kShape.lanes_m, kLanesN = 32 / kLanesM;
  static constexpr int kWarpsM = kBlockM / (kLanesM * kThreadM);
  static constexpr int kWarpsOfSlice = kThreadsOfSlice / 32;
  static constexpr int kDepth = kBlockK / kSlices;  // k of a stage for each slice
  static constexpr int kSums = kThreadM * kThreadN;
  static constexpr bool kAllSlicesAdd = kShape.AllSlicesAdd();
  // Rows of a thread tile that a slice adds and stores; they are consecutive.
  static constexpr int kRowsOfSlice = kAllSlicesAdd ? kThreadM / kSlices : kThreadM;
  static_assert(kThreadM % kRowsOfSlice == 0 && (4 % kRowsOfSlice == 0 || kRowsOfSlice % 4 == 0));

  static constexpr bool kTransposesA = TransposesA(kShape, kKMajorA);
  static constexpr bool kReadsKMajor = kEngine == Engine::kTma && kKMajorA && !kTransposesA;

  // The loop unrolls two k: more would not stay in the instruction cache, and have more bank
  // conflicts. Small sliced tiles, whose blocks have few warps, unroll all k of a stage.
  // H200 4096^3, TFLOP/s (2026-11): by 2 54.3, by 4 53.3, by 16 52.0
  // H200 256^3 TN, us (2026-11): by 2 4.6, by 16 4.0
  static constexpr int kUnroll = kEngine == Engine::kTma && kShape.AllSlicesAdd() ? kDepth : 2;
  static constexpr int kSteps = kDepth / kUnroll;
  static_assert(!kReadsKMajor || kUnroll == kDepth, "FragmentKMajor counts the k of a tile");
  // Prepare runs one step before its tile is needed, if there are several steps, so that the
  // barrier does not wait for it.
  static constexpr int kPrepareStep = kSteps > 1 ? kSteps - 1 : 1;

  using TmaEngine =
      TmaStages<kBlockM, kBlockN, kBlockK, kStages, kThreads, kKMajorA, kKMajorB, kTransposesA>;
  using FloatEngine =
      FloatStages<kBlockM, kBlockN, kBlockK, kStages, kThreads, kSteps, kKMajorA, kKMajorB>;
  using Stages = std::conditional_t<kEngine == Engine::kTma, TmaEngine, FloatEngine>;
  using FragmentA =
      std::conditional_t<kReadsKMajor, FragmentKMajor<kThreadM, kLanesM, kBlockM, kDepth>,
                         FragmentMNMajor<kThreadM, kLanesM, Stages::kPitchA, kDepth>>;
  using FragmentB = FragmentMNMajor<kThreadN, kLanesN, Stages::kPitchB, kDepth>;

  int slice, line_m, line_n;  // of the thread, in its block

  __device__ Pipelined() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    slice = warp / kWarpsOfSlice;
    const int warp_of_slice = warp % kWarpsOfSlice;
    line_m = warp_of_slice % kWarpsM * (kLanesM * kThreadM) + lane / kLanesN * 4;
    line_n = warp_of_slice / kWarpsM * (kLanesN * kThreadN) + lane % kLanesN * 4;
  }

  float acc[kThreadM][kThreadN];

  // Run sums over all tiles of k and finishes C. `stages` has started the copies of the first
  // tiles. `params(row)` are the epilogue's parameters of the thread tile from its row `row` on.
  template <class MakeParams>
  __device__ void Run(Stages& stages, int tiles, float* smem, const MakeParams& params,
                      bool aligned_c) {
    FragmentA a;
    FragmentB b;
    const int offset_a = FragmentA::First(slice, line_m);
    const int offset_b = FragmentB::First(slice, line_n);
    const float* from_a;
    const float* from_b;
    const auto go_to = [&](int tile) {
      __syncthreads();
      from_a = stages.A(tile) + offset_a;
      from_b = stages.B(tile) + offset_b;
      stages.Refill(tile);
    };
    stages.Prepare(0);
    go_to(0);
    a.Load(from_a, 0);
    b.Load(from_b, 0);
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[i / kThreadN][i % kThreadN] = 0.0f;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll 1
      for (int step = 1; step <= kSteps; ++step) {
        stages.Step();
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          // Fragments of the next k load while those of this k are multiplied.
          const int next = (u + 1) % kUnroll;
          if (next == 0) {
            from_a += kUnroll * Stages::kPitchA;
            from_b += kUnroll * Stages::kPitchB;
            if (step >= kPrepareStep) {
              if (step == kPrepareStep) stages.Prepare(tile + 1);
              if (step == kSteps) go_to(tile + 1);
            }
          }
          a.Load(from_a, next);
          b.Load(from_b, next);
          AddOuterProduct(a.Of(u), b.Of(u), acc);
        }
      }
    }
    stages.Drain();
    if constexpr (!kAllSlicesAdd) {
      if constexpr (kSlices > 1) AddSlicesToFirst(smem);
      if (slice == 0) FinishThreadTile<Pipelined>(params(0), aligned_c, acc);
    } else {
      float sums[kRowsOfSlice][kThreadN];
      AddSlices(smem, sums);
      FinishThreadTile<Pipelined>(params(RowOf(slice * kRowsOfSlice)), aligned_c, sums);
    }
  }

  __device__ float* SumsOf(int slice_of_sums, float* smem) const {
    return smem + slice_of_sums * kSums * kThreadsOfSlice + threadIdx.x % kThreadsOfSlice;
  }
  __device__ void WriteSums(float* to) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) to[i * kThreadsOfSlice] = acc[i / kThreadN][i % kThreadN];
  }

  // AddSlicesToFirst adds the sums of the other slices to those of slice 0, in order.
  __device__ void AddSlicesToFirst(float* smem) {
    __syncthreads();
    if (slice > 0) WriteSums(SumsOf(slice - 1, smem));
    __syncthreads();
    if (slice > 0) return;
#pragma unroll 1
    for (int other = 0; other < kSlices - 1; ++other) {
      const float* const from = SumsOf(other, smem);
#pragma unroll
      for (int i = 0; i < kSums; ++i) acc[i / kThreadN][i % kThreadN] += from[i * kThreadsOfSlice];
    }
  }

  // AddSlices does the same, but every slice adds all sums of its own rows of the thread tile.
  __device__ void AddSlices(float* smem, float (&sums)[kRowsOfSlice][kThreadN]) {
    __syncthreads();
    WriteSums(SumsOf(slice, smem));
    __syncthreads();
    const int first = slice * kRowsOfSlice * kThreadN;
#pragma unroll
    for (int i = 0; i < kRowsOfSlice * kThreadN; ++i) {
      float& sum = sums[i / kThreadN][i % kThreadN];
      sum = SumsOf(0, smem)[(first + i) * kThreadsOfSlice];
#pragma unroll
      for (int other = 1; other < kSlices; ++other) {
        sum += SumsOf(other, smem)[(first + i) * kThreadsOfSlice];
      }
    }
  }

  static __device__ int RowOf(int i) { return Quads<kLanesM>::LineOf(i); }
  static __device__ int ColumnOf(int j) { return Quads<kLanesN>::LineOf(j); }
};

__device__ inline bool IsSelected(const TileSelection& selected, const PipelinedGrid& grid,
                                  const WorkTile& work) {
  if (selected.count[work.batch_index] > selected.most) return true;
  const int64_t row = int64_t{work.batch_index} * grid.tiles_m + work.tile_m;
  return selected.flags[row * grid.tiles_n + work.tile_n] != 0;
}

// kSelected: only selected tiles are computed. It is a template parameter because an early return
// changes the register allocation, which decides the speed.
template <int kTile, Engine kEngine, bool kKMajorA, bool kKMajorB, bool kSelected>
__global__ void __launch_bounds__(kPipelinedTiles[kTile].Threads(),
                                  kPipelinedTiles[kTile].blocks_per_sm)
    PipelinedSgemm(const __grid_constant__ CUtensorMap map_a,
                   const __grid_constant__ CUtensorMap map_b,
                   const __grid_constant__ SgemmArgs args,
                   const __grid_constant__ PipelinedGrid grid) {
  using Kernel = Pipelined<kTile, kEngine, kKMajorA, kKMajorB>;
  extern __shared__ __align__(1024) float smem[];

  if constexpr (!kSelected) StaggerSecondBlock(grid);
  const WorkTile work = WorkTileOf(grid);
  if constexpr (kSelected) {
    if (!IsSelected(args.selected, grid, work)) return;
  }
  const int64_t first_m = int64_t{work.tile_m} * Kernel::kBlockM;
  const int64_t first_n = int64_t{work.tile_n} * Kernel::kBlockN;
  const int64_t first_k = (grid.part + work.split) * grid.k_per_split;
  const int64_t depth = min(grid.k_per_split, args.k - first_k);
  const int tiles = static_cast<int>((depth + Kernel::kBlockK - 1) / Kernel::kBlockK);
  const MatrixIndices matrices = MatrixIndicesOf(args, work.batch_index);
  const OperandWindow a{args.a, args.m, args.k, args.pitch_a, matrices.a, first_m, first_k};
  const OperandWindow b{args.b, args.n, args.k, args.pitch_b, matrices.b, first_n, first_k};

  Kernel kernel;
  const auto params = [&](int below) {
    const bool whole = grid.split_k == 1;  // otherwise ReduceSplits applies alpha, beta and C
    const int64_t row = first_m + kernel.line_m + below, column = first_n + kernel.line_n;
    const int64_t first = (work.batch_index * args.m + row) * args.n + column;
    float* out = whole ? args.out : args.partial + work.split * grid.batch * args.m * args.n;
    return EpilogueParams{whole ? args.alpha : 1.0f,
                          whole ? args.beta : 0.0f,
                          args.c + first,
                          out + first,
                          args.n,
                          args.m - row,
                          args.n - column};
  };
  if constexpr (kEngine == Engine::kTma) {
#if __CUDA_ARCH__ >= 900
    typename Kernel::Stages stages(smem, map_a, map_b, a, b, tiles);
    kernel.Run(stages, tiles, smem, params, args.aligned_c);
#endif
  } else {
    typename Kernel::Stages stages(smem, a, b, depth);
    kernel.Run(stages, tiles, smem, params, args.aligned_c);
  }
}

}  // namespace jaxkernels
