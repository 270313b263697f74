// Few k: operands are read and C is written once, and that is what takes the time.
//
// Work split: a thread has four columns of C and kRows rows; `lanes` threads side by side share
// rows. Memory: all k, or a part of them, of a block's rows of A and columns of B lie in shared
// memory; copies that pass by the registers keep many bytes on their way. Nothing is fetched below
// the arithmetic: the blocks of an SM take turns at that.
// Requires: kPack 4: rows of C and of the result begin at multiples of 16 bytes. `lanes` is a power
// of two, 4 to 32.
#ifndef JAXKERNELS_SGEMM_THIN_SHALLOW_CUH_
#define JAXKERNELS_SGEMM_THIN_SHALLOW_CUH_

#include <cstdint>

#include "core/shared_address.cuh"
#include "sgemm/args.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/pipelined/async_copy.cuh"
#include "sgemm/thin/forms.h"

namespace jaxkernels {

// What a block stages of an operand: so many lines by so many k exist.
struct ShallowOperand {
  const float* data;  // of the first line and k
  int64_t pitch;      // from line to line where lines lie along k, else from k to k
  int lines, depth;
  bool along_k;
  bool in_packs;  // stored rows begin at multiples of 16 bytes

  // Of a member of the batch, from line `first` on.
  __device__ ShallowOperand(const float* member, int64_t all_lines, int64_t all_depth,
                            int64_t first, int lines_of_block, bool along_k, bool in_packs)
      : data(member + first * (along_k ? all_depth : 1)),
        pitch(along_k ? all_depth : all_lines),
        lines(static_cast<int>(min(all_lines - first, int64_t{lines_of_block}))),
        along_k(along_k),
        in_packs(in_packs) {}

  __device__ const float* At(int line, int k) const {
    return data + (along_k ? line * pitch + k : k * pitch + line);
  }
  __device__ void Advance(int k) { data += along_k ? k : k * pitch; }
};

// Passed to kernels by value.
struct ShallowArgs {
  SgemmArgs product;
  bool along_k_a, along_k_b;
  int lanes;
  int depth;  // k in shared memory at once
  int pitch_a, pitch_b;
  unsigned tiles_m, tiles_n;
};

// Copies four k of a line, from `k` on, to places `step` floats apart; zeros where there are none.
__device__ inline void CopyQuadOfK(const ShallowOperand& operand, int line, int k, int step,
                                   float* to) {
  const bool exists = line < operand.lines;
  const float* const from = exists ? operand.At(line, k) : operand.data;
  const int64_t stride = operand.along_k ? 1 : operand.pitch;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool valid = exists && k + i < operand.depth;
    CopyFloatAsync(SharedAddress(to + i * step), valid ? from + i * stride : operand.data, valid);
  }
}

// Rows of A by k: [row][k], `pitch` floats apart. Neighbouring threads read neighbours in memory,
// but where lines lie along k and begin anywhere.
__device__ inline void CopyRows(const ShallowOperand& a, int rows, int quads, int pitch,
                                float* staged) {
  for (int i = threadIdx.x; i < rows * quads; i += kThinThreads) {
    const int row = a.along_k ? i / quads : i % rows;
    const int quad = a.along_k ? i % quads : i / rows;
    float* const to = staged + row * pitch + 4 * quad;
    if (a.along_k && a.in_packs) {
      const bool valid = row < a.lines;
      CopyPackAsync(SharedAddress(to), valid ? a.At(row, 4 * quad) : a.data, valid);
    } else {
      CopyQuadOfK(a, row, 4 * quad, 1, to);
    }
  }
}

// Columns of B by k: [k][column].
__device__ inline void CopyColumns(const ShallowOperand& b, int columns, int quads, int pitch,
                                   float* staged) {
  if (b.along_k) {
    const int pairs = (quads + 1) / 2;  // a warp stores 16 columns by 2 quads
    for (int i = threadIdx.x; i < columns * pairs * 2; i += kThinThreads) {
      const int chunk = i / 32;
      const int column = chunk / pairs * 16 + i % 16, quad = chunk % pairs * 2 + i / 16 % 2;
      if (quad >= quads) continue;
      CopyQuadOfK(b, column, 4 * quad, pitch, staged + 4 * quad * pitch + column);
    }
    return;
  }
  const int width = b.in_packs ? 4 : 1, copies = columns / width;
  for (int i = threadIdx.x; i < copies * quads * 4; i += kThinThreads) {
    const int k = i / copies, column = i % copies * width;
    const bool valid = k < b.depth && column < b.lines;
    const float* const from = valid ? b.At(column, k) : b.data;
    float* const to = staged + k * pitch + column;
    if (b.in_packs) {
      CopyPackAsync(SharedAddress(to), from, valid);
    } else {
      CopyFloatAsync(SharedAddress(to), from, valid);
    }
  }
}

// Where the four columns of a thread lie: neighbours, or `lanes` apart where rows begin anywhere.
template <int kPack>
__device__ int ColumnOfThread(int lane, int lanes, int j) {
  return kPack == 4 ? 4 * lane + j : lane + j * lanes;
}

template <int kPack, int kRows>
__device__ void StoreRows(const SgemmArgs& product, int64_t offset, int64_t rows, int64_t columns,
                          int lane, int lanes, int row_step,
                          const float (&sums)[kRows][kShallowColumns]) {
  const Destination to{
      product.alpha, product.beta, product.c + offset, product.out + offset, product.n,
      rows,          columns};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i * row_step >= rows) return;
    const int64_t row = i * row_step * to.pitch;
    if constexpr (kPack == 4) {
      if (4 * lane >= columns) return;
      if (to.beta == 0.0f) {
        StoreQuad<false>(to, row + 4 * lane, sums[i]);
      } else {
        StoreQuad<true>(to, row + 4 * lane, sums[i]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kShallowColumns; ++j) {
        const int column = ColumnOfThread<kPack>(lane, lanes, j);
        if (column >= columns) continue;
        const float* const old = to.c + row + column;
        to.out[row + column] = CombineWith(to.alpha, sums[i][j], to.beta, old);
      }
    }
  }
}

template <int kRows, int kPack>
__global__ void __launch_bounds__(kThinThreads, kThinBlocksPerSm)
    SumShallow(const __grid_constant__ ShallowArgs args) {
  extern __shared__ __align__(16) float staged[];
  const SgemmArgs& product = args.product;
  const int lanes = args.lanes, columns = kShallowColumns * lanes;
  const int row_step = kThinThreads / lanes, rows = kRows * row_step;
  const int pitch_a = args.pitch_a, pitch_b = args.pitch_b;
  const unsigned tiles = args.tiles_m * args.tiles_n;
  const unsigned tile = blockIdx.x % tiles, member = blockIdx.x / tiles;
  const int64_t first_row = int64_t{tile / args.tiles_n} * rows;
  const int64_t first_column = int64_t{tile % args.tiles_n} * columns;
  const MemberIndices matrices = IndicesOfMember(product, static_cast<int>(member));
  ShallowOperand a(product.a + matrices.a * product.m * product.k, product.m, product.k, first_row,
                   rows, args.along_k_a, product.aligned_a);
  ShallowOperand b(product.b + matrices.b * product.n * product.k, product.n, product.k,
                   first_column, columns, args.along_k_b, product.aligned_b);
  float* const staged_b = staged + rows * pitch_a;
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;

  float sums[kRows][kShallowColumns] = {};
  for (int64_t k = 0; k < product.k; k += args.depth) {
    a.depth = b.depth = static_cast<int>(min(product.k - k, int64_t{args.depth}));
    const int quads = (a.depth + 3) / 4;
    if (k > 0) __syncthreads();
    CopyRows(a, rows, quads, pitch_a, staged);
    CopyColumns(b, columns, quads, pitch_b, staged_b);
    WaitForAllAsync();
    a.Advance(args.depth);
    b.Advance(args.depth);
    __syncthreads();
    const float* of_a = staged + group * pitch_a;
    const float* of_b = staged_b + ColumnOfThread<kPack>(lane, lanes, 0);
#pragma unroll 1
    for (int quad = 0; quad < quads; ++quad, of_a += 4, of_b += 4 * pitch_b) {
      float y[4][kShallowColumns];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        if constexpr (kPack == 4) {
          const float4 pack = *reinterpret_cast<const float4*>(of_b + q * pitch_b);
          y[q][0] = pack.x, y[q][1] = pack.y, y[q][2] = pack.z, y[q][3] = pack.w;
        } else {
#pragma unroll
          for (int j = 0; j < kShallowColumns; ++j) y[q][j] = of_b[q * pitch_b + j * lanes];
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(of_a + i * row_step * pitch_a);
#pragma unroll
        for (int j = 0; j < kShallowColumns; ++j) {
          sums[i][j] = fmaf(x.x, y[0][j], sums[i][j]);
          sums[i][j] = fmaf(x.y, y[1][j], sums[i][j]);
          sums[i][j] = fmaf(x.z, y[2][j], sums[i][j]);
          sums[i][j] = fmaf(x.w, y[3][j], sums[i][j]);
        }
      }
    }
  }
  const int64_t row = first_row + group;
  const int64_t offset = member * (product.m * product.n) + row * product.n + first_column;
  StoreRows<kPack, kRows>(product, offset, product.m - row, product.n - first_column, lane, lanes,
                          row_step, sums);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_SHALLOW_CUH_
