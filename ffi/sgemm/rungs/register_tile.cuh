// The common kernel of the rungs thread_tile, warp_tile and split_tile. A block of 256 threads
// computes 128 x 128 elements of C; a thread keeps 8 x 8 of them in registers. A layout tells the
// rungs apart: the order of A in shared memory, the elements of a thread, and whether the next
// tiles are prefetched during the arithmetic.
//
// Memory: tiles of 8 k of both operands in shared memory, loaded 16 bytes a thread. Each operand is
// read from global memory once for every 128 rows (or columns) of C. Registers: 64 sums, 16
// fragments and, with prefetching, 8 floats in flight.
#pragma once

#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/rungs/outer_product.cuh"
#include "sgemm/tiles.h"

namespace jaxkernels {

inline constexpr int kRungTile = kRegisterTile.block_m;   // rows and columns of a block tile
inline constexpr int kRungTileK = kRegisterTile.block_k;  // k of a tile
inline constexpr int kRungThreads = kRegisterTile.Threads();
static_assert(kRegisterTile.block_n == kRungTile && kRungThreads * 4 == kRungTile * kRungTileK,
              "a thread loads four elements of each operand");
static_assert(kRegisterTile.thread_m == 8 && kRegisterTile.thread_n == 8, "layouts are of 8 x 8");

// SmemOrder is the order of a tile in shared memory.
enum class SmemOrder { kLineMajor, kDepthMajor };  // [line][k], [k][line]

// kRungPitch is the floats from one k to the next in a transposed tile. A warp that transposes
// writes 16 lines of k and of k + 4 at once; with a pitch of 128 floats they would share 16 banks.
inline constexpr int kRungPitch = kRungTile + 4;
inline constexpr int kRungTileFloats = kRungPitch * kRungTileK;

// TileQuad moves four neighbouring elements of a thread from global to shared memory. 256 threads x
// 4 elements are 128 lines x 8 k.
template <bool kKMajor>
class TileQuad {
 public:
  // `aligned`: stored rows start at 16-byte boundaries.
  __device__ TileQuad(const Operand<kKMajor>& operand, int64_t first_line, bool aligned)
      : line_(kKMajor ? threadIdx.x / 2 : threadIdx.x % 32 * 4),
        depth_(kKMajor ? threadIdx.x % 2 * 4 : threadIdx.x / 32),
        lines_left_(static_cast<int>(min(operand.lines - first_line - line_, int64_t{kRungTile}))),
        aligned_(aligned),
        from_(operand.data + operand.Offset(first_line + line_, depth_)) {}

  // Load loads the quad of the next tile, with zeros beyond the operand. `depth_left`: the k that
  // are left.
  __device__ void Load(int64_t depth_left, int64_t lines) {
    const bool valid = lines_left_ > 0 && depth_ < depth_left;
    if (aligned_ && valid) {
      *reinterpret_cast<float4*>(v_) = *reinterpret_cast<const float4*>(from_);
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const bool inside = valid && (kKMajor ? depth_ + q < depth_left : q < lines_left_);
        v_[q] = inside ? from_[q] : 0.0f;
      }
    }
    from_ += kKMajor ? kRungTileK : kRungTileK * lines;
  }

  template <SmemOrder kOrder>
  __device__ void Store(float* tile) const {
    constexpr int kLineStep = kOrder == SmemOrder::kDepthMajor ? 1 : kRungTileK;
    constexpr int kDepthStep = kOrder == SmemOrder::kDepthMajor ? kRungPitch : 1;
    constexpr int kStep = kKMajor ? kDepthStep : kLineStep;
    float* to = tile + line_ * kLineStep + depth_ * kDepthStep;
    if constexpr (kStep == 1) {
      *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(v_);
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q) to[q * kStep] = v_[q];
    }
  }

 private:
  int line_, depth_, lines_left_;
  bool aligned_;
  const float* from_;
  float v_[4];
};

template <class Layout, bool kKMajorA, bool kKMajorB>
__global__ void __launch_bounds__(kRungThreads)
    RegisterTileSgemm(const __grid_constant__ SgemmArgs args,
                      const __grid_constant__ RungGrid grid) {
  constexpr int kBuffers = Layout::kPrefetches ? 2 : 1;
  __shared__ __align__(16) float a_smem[kBuffers][kRungTileFloats];
  __shared__ __align__(16) float b_smem[kBuffers][kRungTileFloats];

  const RungBlock block = BlockOfGrid(args, grid);
  const int64_t first_m = block.tile_m * kRungTile, first_n = block.tile_n * kRungTile;
  TileQuad<kKMajorA> a_quad({block.a, args.m, args.k}, first_m, args.aligned_a);
  TileQuad<kKMajorB> b_quad({block.b, args.n, args.k}, first_n, args.aligned_b);
  const Layout layout;
  float acc[8][8] = {};

  const auto load = [&](int64_t first_k) {
    a_quad.Load(args.k - first_k, args.m);
    b_quad.Load(args.k - first_k, args.n);
  };
  const auto store = [&](int buffer) {
    a_quad.template Store<Layout::kOrderOfA>(a_smem[buffer]);
    b_quad.template Store<SmemOrder::kDepthMajor>(b_smem[buffer]);
  };
  const auto compute = [&](int buffer) {
#pragma unroll 2
    for (int k = 0; k < kRungTileK; ++k) {
      float a_frag[8], b_frag[8];
      layout.LoadA(a_smem[buffer], k, a_frag);
      layout.LoadB(b_smem[buffer], k, b_frag);
      AddOuterProduct(a_frag, b_frag, acc);
    }
  };

  load(0);
  store(0);
  int buffer = 0;
  for (int64_t k = 0; k < args.k; k += kRungTileK) {
    __syncthreads();
    if constexpr (Layout::kPrefetches) {
      load(k + kRungTileK);  // in flight while this tile is multiplied; zero after the last
      compute(buffer);
      buffer ^= 1;
      store(buffer);
    } else {
      compute(0);
      __syncthreads();
      load(k + kRungTileK);
      store(0);
    }
  }

  const int64_t row = first_m + layout.row, column = first_n + layout.column;
  const int64_t first = block.c_offset + row * args.n + column;
  const EpilogueParams to{args.alpha, args.beta,    args.c + first, args.out + first,
                          args.n,     args.m - row, args.n - column};
  FinishThreadTile<Layout>(to, args.aligned_c, acc);
}

// LoadQuads reads two quads of row k of a transposed tile, kApart floats apart, by two 16-byte
// loads.
template <int kApart>
__device__ void LoadQuads(const float* tile, int k, int line, float (&fragment)[8]) {
  const float* from = tile + k * kRungPitch + line;
  *reinterpret_cast<float4*>(fragment) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(fragment + 4) = *reinterpret_cast<const float4*>(from + kApart);
}

}  // namespace jaxkernels
