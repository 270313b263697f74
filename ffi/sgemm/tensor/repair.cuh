// Recomputes elements of C that pairs cannot represent, from the original operands by float64. With
// split-k, it also recomputes tiles.
//
// Owns: their sums. Must not know: why an element is listed, or a tile flagged (epilogue.cuh).
//
// With split-k, tiles are few and k is large. The FFMA kernel, which recomputes tiles without
// split-k, would have one block per tile. For accuracy it would sum at most 1024 k per launch, and
// each launch takes 1 us even with nothing to do. Float64 sums all of k at half the rate of FFMA,
// with eight blocks per tile, in the launch that repairs elements.
#pragma once

#include "sgemm/epilogue.cuh"
#include "sgemm/tensor/args.cuh"

namespace jaxkernels {

inline constexpr int kRepairThreads = 256, kRepairWarps = kRepairThreads / 32;
inline constexpr int kRepairBlocksOfSm = 4;

// IsRecomputed tells whether a tile, numbered over all batch members, is recomputed as a whole.
__device__ inline bool IsRecomputed(const TensorArgs& args, unsigned tile) {
  return args.flags[tile] != 0 || TooManyFlagged(args, tile / (args.tiles_m * args.tiles_n));
}

// RepairPiece: a block has 64 x 32 elements of a tile, a thread 2 x 4 of them: rows 32 apart,
// columns 8.
struct RepairPiece {
  static constexpr int kRows = 64, kColumns = 32, kDepth = 8;
  static constexpr int kRowThreads = 32, kColumnThreads = 8;
  static constexpr int kThreadRows = kRows / kRowThreads;
  static constexpr int kThreadColumns = kColumns / kColumnThreads;
  static constexpr int kPerRow = kTensorLines / kColumns;  // pieces of a tile side by side
  static constexpr int kOfTile = kTensorLines / kRows * kPerRow;
  static_assert(kRowThreads * kColumnThreads == kRepairThreads);
};

// RepairStage moves kLines of an operand by 8 k from memory to registers, then to shared memory as
// float64. Four elements of padding after the lines of a k let half a warp write 8 k of two lines
// without conflicts.
template <int kLines>
struct RepairStage {
  static constexpr int kDepth = RepairPiece::kDepth, kCount = kLines * kDepth / kRepairThreads;
  using Lines = double[kDepth][kLines + 4];

  const TensorOperand& operand;
  const float* matrix;
  int64_t first_line;
  float values[kCount];

  __device__ RepairStage(const TensorOperand& of, int index, int64_t line)
      : operand(of), matrix(of.data + index * of.MatrixElements()), first_line(line) {}

  __device__ int LineOf(int i) const {
    const int place = i * kRepairThreads + threadIdx.x;
    return operand.k_major ? place / kDepth : place % kLines;
  }
  __device__ int DepthOf(int i) const {
    const int place = i * kRepairThreads + threadIdx.x;
    return operand.k_major ? place % kDepth : place / kLines;
  }
  // Elements out of range are zero.
  __device__ void Load(int64_t first_k) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t line = first_line + LineOf(i), k = first_k + DepthOf(i);
      const int64_t at = operand.Offset(line, k);
      values[i] = line < operand.lines && k < operand.depth ? matrix[at] : 0.0f;
    }
  }
  __device__ void Store(Lines& lines) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) lines[DepthOf(i)][LineOf(i)] = values[i];
  }
};

// RepairPieceOf computes the piece of a tile whose first element in C is (row, column). All threads
// of a block call it.
__device__ inline void RepairPieceOf(const TensorArgs& args, int batch_index, int64_t row,
                                     int64_t column) {
  using Piece = RepairPiece;
  __shared__ RepairStage<Piece::kRows>::Lines lines_a;
  __shared__ RepairStage<Piece::kColumns>::Lines lines_b;
  const SgemmArgs& product = args.product;
  if (row >= product.m || column >= product.n) return;
  const MatrixIndices matrices = MatrixIndicesOf(product, batch_index);
  RepairStage<Piece::kRows> stage_a(args.a, matrices.a, row);
  RepairStage<Piece::kColumns> stage_b(args.b, matrices.b, column);
  const int thread_row = threadIdx.x / Piece::kColumnThreads;
  const int thread_column = threadIdx.x % Piece::kColumnThreads;
  double sums[Piece::kThreadRows][Piece::kThreadColumns] = {};
  stage_a.Load(0);
  stage_b.Load(0);
  for (int64_t first_k = 0; first_k < product.k; first_k += Piece::kDepth) {
    __syncthreads();
    stage_a.Store(lines_a);
    stage_b.Store(lines_b);
    __syncthreads();
    stage_a.Load(first_k + Piece::kDepth);
    stage_b.Load(first_k + Piece::kDepth);
#pragma unroll
    for (int k = 0; k < Piece::kDepth; ++k) {
      double b[Piece::kThreadColumns];
#pragma unroll
      for (int j = 0; j < Piece::kThreadColumns; ++j) {
        b[j] = lines_b[k][thread_column + j * Piece::kColumnThreads];
      }
#pragma unroll
      for (int i = 0; i < Piece::kThreadRows; ++i) {
        const double a = lines_a[k][thread_row + i * Piece::kRowThreads];
#pragma unroll
        for (int j = 0; j < Piece::kThreadColumns; ++j) sums[i][j] = fma(a, b[j], sums[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Piece::kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < Piece::kThreadColumns; ++j) {
      const int64_t r = row + thread_row + i * Piece::kRowThreads;
      const int64_t c = column + thread_column + j * Piece::kColumnThreads;
      if (r >= product.m || c >= product.n) continue;
      const int64_t at = (int64_t{batch_index} * product.m + r) * product.n + c;
      product.out[at] = LinearCombinationAt(product.alpha, static_cast<float>(sums[i][j]),
                                            product.beta, product.c + at);
    }
  }
}

__device__ inline void RepairTiles(const TensorArgs& args) {
  const unsigned tiles_mn = args.tiles_m * args.tiles_n;
  const unsigned pieces = tiles_mn * args.batch * RepairPiece::kOfTile;
  for (unsigned index = blockIdx.x; index < pieces; index += gridDim.x) {
    const unsigned tile = index / RepairPiece::kOfTile, piece = index % RepairPiece::kOfTile;
    if (!IsRecomputed(args, tile)) continue;
    const unsigned tile_of_c = tile % tiles_mn;
    const int64_t row = int64_t{tile_of_c / args.tiles_n} * kTensorLines +
                        piece / RepairPiece::kPerRow * RepairPiece::kRows;
    const int64_t column = int64_t{tile_of_c % args.tiles_n} * kTensorLines +
                           piece % RepairPiece::kPerRow * RepairPiece::kColumns;
    RepairPieceOf(args, static_cast<int>(tile / tiles_mn), row, column);
  }
}

// RepairElements computes one element per block at a time, in any order: the sum of an element
// depends only on its operands. Sums are float64, because it costs nothing here. kTiles: the blocks
// also recompute flagged tiles, and skip listed elements of these.
template <bool kTiles>
__global__ void __launch_bounds__(kRepairThreads, kTiles ? kRepairBlocksOfSm : 0)
    RepairElements(const __grid_constant__ TensorArgs args) {
  __shared__ double of_warp[kRepairWarps];
  const SgemmArgs& product = args.product;
  const uint32_t count = *args.repair_count;
  const unsigned tiles_mn = args.tiles_m * args.tiles_n;
  for (uint32_t index = blockIdx.x; index < count; index += gridDim.x) {
    const uint2 repair = args.repairs[index];
    const int batch_index = static_cast<int>(repair.x / tiles_mn);
    if (kTiles ? IsRecomputed(args, repair.x) : TooManyFlagged(args, batch_index)) continue;
    const unsigned tile = repair.x % tiles_mn;
    const int64_t row = int64_t{tile / args.tiles_n} * kTensorLines + repair.y / kTensorLines;
    const int64_t column = int64_t{tile % args.tiles_n} * kTensorLines + repair.y % kTensorLines;
    const MatrixIndices matrices = MatrixIndicesOf(product, batch_index);
    const float* const a =
        args.a.data + matrices.a * args.a.MatrixElements() + args.a.Offset(row, 0);
    const float* const b =
        args.b.data + matrices.b * args.b.MatrixElements() + args.b.Offset(column, 0);
    const int64_t next_a = args.a.Offset(0, 1), next_b = args.b.Offset(0, 1);
    double sum = 0.0;
#pragma unroll 8
    for (int64_t k = threadIdx.x; k < product.k; k += kRepairThreads) {
      sum = fma(static_cast<double>(a[k * next_a]), static_cast<double>(b[k * next_b]), sum);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < kRepairWarps; ++i) sum += of_warp[i];
      const int64_t at = (int64_t{batch_index} * product.m + row) * product.n + column;
      product.out[at] =
          LinearCombinationAt(product.alpha, static_cast<float>(sum), product.beta, product.c + at);
    }
  }
  if constexpr (kTiles) RepairTiles(args);
}

}  // namespace jaxkernels
