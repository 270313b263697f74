// Brings the tiles of A and B into shared memory, several stages ahead of the arithmetic.
//
// Owns: which thread copies what, and the layout in shared memory. A ready tile is block_k rows of
// neighbouring lines, for both layouts of the operand. A line is a row of op(A) or a column of
// op(B). The exception is a K-major A that the kernel reads as TMA delivers it. Elements out of
// range are zero. Must not know: what the tiles are for.
//
// Both engines have the same life cycle. All threads of the block make each call together:
//   Stages stages(...)    starts the copies of the first tiles
//   Prepare(t)            waits for tile t and transposes it if needed
//   __syncthreads()       by the caller: tile t is ready, tile t - 1 is no longer read
//   Refill(t)             starts the copy of the next tile into the stage that is free, or
//   Step()                does so in equal parts, after some k of a tile each
//   Drain()               waits for the remaining copies
//   A(t), B(t)            return tile t
#pragma once

#include <cstdint>

#include "sgemm/args.cuh"
#include "sgemm/pipelined/async_copy.cuh"
#include "sgemm/tiles.h"

namespace jaxkernels {

// k of one box of a K-major operand: a line of the box fills 128 bytes of shared memory.
inline constexpr int kBoxDepth = 32;

struct OperandWindow {
  const float* data;   // of the whole batch
  int64_t lines;       // of one matrix
  int64_t depth;       // k of one matrix
  int64_t pitch;       // elements from one stored row to the next
  int matrix;          // index of the matrix in the batch
  int64_t first_line;  // of the block's tile
  int64_t first_k;     // of the block's share of k
};

// TmaStages lets one thread ask TMA for whole tiles. A K-major operand arrives line by line,
// kBoxDepth k of each, and is transposed in shared memory (A only if kTransposesA).
template <int kBlockM, int kBlockN, int kBlockK, int kStages, int kThreads, bool kKMajorA,
          bool kKMajorB, bool kTransposesA>
class TmaStages {
  static constexpr int kFloatsA = kBlockM * kBlockK;
  static constexpr int kFloatsB = kBlockN * kBlockK;
  static constexpr int kFloats = kFloatsA + kFloatsB;
  // A stage is free once its tile is transposed, if both operands are. Otherwise it is free one
  // tile later.
  static constexpr int kHeld = kTransposesA && kKMajorB ? 0 : 1;

 public:
  static constexpr int kPitchA = kBlockM;
  static constexpr int kPitchB = kBlockN;

  // `smem` is aligned to 1024 bytes, the period of the swizzle. The barriers follow the tiles.
  __device__ TmaStages(float* smem, const CUtensorMap& map_a, const CUtensorMap& map_b,
                       const OperandWindow& a, const OperandWindow& b, int tiles)
      : smem_(smem),
        barriers_(reinterpret_cast<uint64_t*>(smem + kStages * kFloats +
                                              2 * (kTransposesA ? kFloatsA : 0) +
                                              2 * (kKMajorB ? kFloatsB : 0))),
        map_a_(map_a),
        map_b_(map_b),
        line_a_(static_cast<int>(a.first_line)),
        line_b_(static_cast<int>(b.first_line)),
        matrix_a_(a.matrix),
        matrix_b_(b.matrix),
        first_k_(static_cast<int>(a.first_k)),
        tiles_(tiles) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) Mbarrier(barriers_ + stage).Init();
      FenceBarriers();
      for (int tile = 0; tile < kStages && tile < tiles_; ++tile) Fetch(tile, tile);
    }
    __syncthreads();
  }

  __device__ void Prepare(int tile) {
    if (tile >= tiles_) return;
    Mbarrier(barriers_ + stage_of_prepared_).Wait(parity_);
    const float* stage = smem_ + stage_of_prepared_ * kFloats;
    if constexpr (kTransposesA) Transpose<kBlockM>(stage, TransposedA(tile));
    if constexpr (kKMajorB) Transpose<kBlockN>(stage + kFloatsA, TransposedB(tile));
  }

  __device__ void Refill(int tile) {
    const int freed = tile - kHeld;
    const int stage = stage_of_prepared_ >= kHeld ? stage_of_prepared_ - kHeld : kStages - 1;
    if (threadIdx.x == 0 && freed >= 0 && freed + kStages < tiles_) Fetch(freed + kStages, stage);
    if (kStages == 1 || stage_of_prepared_ == kStages - 1) {
      stage_of_prepared_ = 0;
      parity_ ^= 1;
    } else {
      ++stage_of_prepared_;
    }
  }

  __device__ void Step() {}
  __device__ void Drain() {}

  // A and B must be called before Refill(tile).
  __device__ const float* A(int tile) const {
    return kTransposesA ? TransposedA(tile) : smem_ + stage_of_prepared_ * kFloats;
  }
  __device__ const float* B(int tile) const {
    return kKMajorB ? TransposedB(tile) : smem_ + stage_of_prepared_ * kFloats + kFloatsA;
  }

 private:
  __device__ void Fetch(int tile, int stage) {
    const Mbarrier barrier(barriers_ + stage);
    const uint32_t to_a = SharedAddress(smem_ + stage * kFloats);
    const uint32_t to_b = to_a + kFloatsA * sizeof(float);
    const int k = first_k_ + tile * kBlockK;
    barrier.Expect(kFloats * sizeof(float));
    Ask<kBlockM, kKMajorA>(barrier, to_a, map_a_, line_a_, k, matrix_a_);
    Ask<kBlockN, kKMajorB>(barrier, to_b, map_b_, line_b_, k, matrix_b_);
  }

  template <int kLines, bool kKMajor>
  __device__ static void Ask(const Mbarrier& barrier, uint32_t to, const CUtensorMap& map, int line,
                             int k, int matrix) {
    if constexpr (kKMajor) {
#pragma unroll
      for (int box = 0; box < kBlockK; box += kBoxDepth) {
        CopyBox(to + box * kLines * sizeof(float), map, k + box, line, matrix, barrier);
      }
    } else {
      CopyBox(to, map, line, k, matrix, barrier);
    }
  }

  // Transpose gives neighbouring threads neighbouring lines. Each reads 16 bytes, which the swizzle
  // spreads over the banks. It writes four floats, next to those of its neighbours.
  template <int kLines>
  __device__ static void Transpose(const float* from, float* to) {
    static_assert(kThreads % kLines == 0, "a thread stays with its line");
    const int line = threadIdx.x % kLines;
    const int first_pack = kThreads == kLines ? 0 : threadIdx.x / kLines;
    constexpr int kBoxPacks = kBoxDepth / 4;
    const int swizzled = line * kBoxDepth + line % kBoxPacks * 4;
    to += first_pack * 4 * kLines + line;
#pragma unroll
    for (int step = 0; step < kBlockK / 4; step += kThreads / kLines) {
      const int pack = first_pack + step;
      const float4 v = *reinterpret_cast<const float4*>(
          from + pack / kBoxPacks * kLines * kBoxDepth + (swizzled ^ pack % kBoxPacks * 4));
      to[(step * 4 + 0) * kLines] = v.x;
      to[(step * 4 + 1) * kLines] = v.y;
      to[(step * 4 + 2) * kLines] = v.z;
      to[(step * 4 + 3) * kLines] = v.w;
    }
  }

  // Each operand has two transposed tiles: one is read while the next is written.
  __device__ float* TransposedA(int tile) const {
    return smem_ + kStages * kFloats + tile % 2 * kFloatsA;
  }
  __device__ float* TransposedB(int tile) const {
    return smem_ + kStages * kFloats + (kTransposesA ? 2 * kFloatsA : 0) + tile % 2 * kFloatsB;
  }

  float* smem_;
  uint64_t* barriers_;
  const CUtensorMap& map_a_;
  const CUtensorMap& map_b_;
  int line_a_, line_b_, matrix_a_, matrix_b_, first_k_, tiles_;
  int stage_of_prepared_ = 0;
  uint32_t parity_ = 0;  // of the phase in which the tile arrives
};

// FloatCopies copies single floats by cp.async, on every thread, for any alignment and any GPU. A
// tile is copied in kSteps parts, because many copies at once would block the fragment loads.
template <int kLines, int kBlockK, int kThreads, int kSteps, bool kKMajor>
class FloatCopies {
  // Neighbouring threads copy neighbouring k of a K-major operand (a part of a tile's depth), and
  // neighbouring lines of an MN-major one. A step is one or two copies per thread.
  static constexpr int kCopies = kLines * kBlockK / (kThreads * kSteps);
  static constexpr int kDepthAtOnce = kKMajor ? kBlockK / kCopies : kThreads / kLines;
  static constexpr int kLinesAtOnce = kKMajor ? kThreads / kDepthAtOnce : kLines;
  static constexpr int kPitch = PitchOf(kLines, Engine::kFloats, kKMajor);
  static_assert(kLines * kBlockK == kCopies * kThreads * kSteps, "equal steps");

 public:
  __device__ explicit FloatCopies(const OperandWindow& window)
      : k_(kKMajor ? threadIdx.x % kDepthAtOnce : threadIdx.x / kLines),
        step_k_(kKMajor ? 1 : window.pitch),
        step_line_(kKMajor ? window.pitch : 1) {
    const int line = kKMajor ? threadIdx.x / kDepthAtOnce : threadIdx.x % kLines;
    const int64_t exist = window.lines - window.first_line - line;
    lines_left_ = static_cast<int>(min(exist, int64_t{kLines}));
    to_ = (k_ * kPitch + line) * sizeof(float);
    const int64_t rows = kKMajor ? window.lines : window.depth;
    from_ = window.data + window.matrix * rows * window.pitch +
            (window.first_line + line) * step_line_ + (window.first_k + k_) * step_k_;
  }

  // Copy copies the next part of a tile. `depth`: the k of the tile that exist.
  __device__ void Copy(uint32_t tile, int step, int depth) {
    const bool line_valid = (kKMajor ? step * kLinesAtOnce : 0) < lines_left_;
    const int k = k_ + (kKMajor ? 0 : step * kCopies * kDepthAtOnce);
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) {
      CopyFloatAsync(tile + to_ + copy * kDepthAtOnce * kPitch * sizeof(float),
                     from_ + copy * kDepthAtOnce * step_k_,
                     line_valid && k + copy * kDepthAtOnce < depth);
    }
    to_ += kToStep;
    from_ += kKMajor ? kLinesAtOnce * step_line_ : kCopies * kDepthAtOnce * step_k_;
  }

  // Advance moves from the last part of a tile to the first of the next.
  __device__ void Advance() {
    to_ -= kSteps * kToStep;
    if constexpr (kKMajor) from_ += kBlockK - kLines * step_line_;
  }

 private:
  static constexpr uint32_t kToStep =
      (kKMajor ? kLinesAtOnce : kCopies * kDepthAtOnce * kPitch) * sizeof(float);

  int k_, lines_left_;
  int64_t step_k_, step_line_;
  uint32_t to_;  // within a tile
  const float* from_;
};

template <int kBlockM, int kBlockN, int kBlockK, int kStages, int kThreads, int kSteps,
          bool kKMajorA, bool kKMajorB>
class FloatStages {
 public:
  static constexpr int kPitchA = PitchOf(kBlockM, Engine::kFloats, kKMajorA);
  static constexpr int kPitchB = PitchOf(kBlockN, Engine::kFloats, kKMajorB);

  // `depth`: the block's share of k.
  __device__ FloatStages(float* smem, const OperandWindow& a, const OperandWindow& b, int64_t depth)
      : smem_(smem), copies_a_(a), copies_b_(b), depth_left_(depth) {
    for (int stage = 0; stage < kStages - 1; ++stage) {
      for (int step = 0; step < kSteps; ++step) Step();
      Advance();
    }
  }

  // Step copies a part of a new tile into the stage of the tile before the current one.
  __device__ void Step() {
    const uint32_t to = SharedAddress(smem_ + filling_ * kFloats);
    const int depth = static_cast<int>(min(depth_left_, int64_t{kBlockK}));
    copies_a_.Copy(to, step_, depth);
    copies_b_.Copy(to + kFloatsA * sizeof(float), step_, depth);
    ++step_;
  }

  // Prepare(t) runs after the copies of tile t + kStages - 3 are committed.
  static_assert(kStages >= 3, "one is read, one is ready, one is being filled");
  __device__ void Prepare(int) { WaitForAsyncGroups<kStages - 3>(); }
  __device__ void Refill(int tile) {
    if (tile > 0) Advance();
  }
  __device__ void Drain() { WaitForAllAsync(); }

  __device__ const float* A(int tile) const { return smem_ + tile % kStages * kFloats; }
  __device__ const float* B(int tile) const { return A(tile) + kFloatsA; }

 private:
  static constexpr int kFloatsA = kPitchA * kBlockK;
  static constexpr int kFloats = kFloatsA + kPitchB * kBlockK;

  // Advance commits a group even if nothing was left to copy, so that one group is one tile.
  __device__ void Advance() {
    CommitAsyncGroup();
    copies_a_.Advance();
    copies_b_.Advance();
    depth_left_ -= kBlockK;
    step_ = 0;
    filling_ = filling_ == kStages - 1 ? 0 : filling_ + 1;
  }

  float* smem_;
  FloatCopies<kBlockM, kBlockK, kThreads, kSteps, kKMajorA> copies_a_;
  FloatCopies<kBlockN, kBlockK, kThreads, kSteps, kKMajorB> copies_b_;
  int64_t depth_left_;
  int filling_ = 0, step_ = 0;
};

}  // namespace jaxkernels
