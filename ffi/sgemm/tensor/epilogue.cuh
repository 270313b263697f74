// The epilogue of a tile of C: scaled sums in registers become elements of C, unless pairs of
// float16 may be too inaccurate for them. With split-k a kernel first adds the sums of the parts.
//
// Owns: the test for uncertain sums, the list of those that are recomputed, the stores, and the
// layout of a part's sums in the scratch. Must not know: how sums are computed, who repairs.
//
// A separate launch adds the parts. The block that ends last could do it instead, but one SM reads
// 64 bytes a cycle, and 32 parts of a tile are 2 MiB.
#pragma once

#include "core/cluster.cuh"
#include "sgemm/epilogue.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/pair.cuh"

namespace jaxkernels {

// TensorEpilogue holds a thread's elements of a tile, in the layout of mainloop.cuh: rows `row` and
// `row` + 8, pairs of columns from `column` on. Bit i of a mask belongs to sums[i]. A thread has
// all 64 sums of a multiplying thread, or some of them (FinishParts).
template <int kSums>
class TensorEpilogue {
 public:
  __device__ TensorEpilogue(const TensorArgs& args, const TensorTile& tile, int row, int column)
      : args_(args), batch_index_(tile.batch_index), row_(row), column_(column) {
    const MatrixIndices matrices = MatrixIndicesOf(args.product, tile.batch_index);
    tile_a_ = matrices.a * args.tiles_m + tile.m;
    tile_b_ = matrices.b * args.tiles_n + tile.n;
    tile_ =
        (static_cast<uint32_t>(tile.batch_index) * args.tiles_m + tile.m) * args.tiles_n + tile.n;
    const int64_t first_row = int64_t{tile.m} * kTensorLines + row;
    const int64_t first_column = int64_t{tile.n} * kTensorLines + column;
    rows_ = args.product.m - first_row;
    columns_ = args.product.n - first_column;
    offset_ =
        (int64_t{tile.batch_index} * args.product.m + first_row) * args.product.n + first_column;
  }

  // CountUncertain counts the uncertain sums of this warp. Decide gets the count of 16 x 128 sums,
  // which may be spread over several warps. If there are too many, it returns false and flags the
  // tile, which is then recomputed as a whole.
  __device__ int CountUncertain(const float (&sums)[kSums]) {
    if (__any_sync(~0u, MayBeUncertain(sums))) uncertain_ = FindUncertain(sums);
    return __reduce_add_sync(~0u, __popcll(uncertain_));
  }
  __device__ bool Decide(int count) {
    count_ = count;
    if (count_ <= kMaxRepairsOfWarp) return true;
    if (threadIdx.x % 32 == 0 && atomicExch(&args_.flags[tile_], 1) == 0) {
      atomicAdd(&args_.flagged[batch_index_], 1);
    }
    return false;
  }

  __device__ bool IsFlagged() const {
    return *const_cast<const volatile uint32_t*>(&args_.flags[tile_]) != 0;
  }

  __device__ void Store(const float (&sums)[kSums]) const {
    if (count_ > 0) ListRepairs();
    if (args_.product.beta == 0.0f) {
      StoreAll<false>(sums);
    } else {
      StoreAll<true>(sums);
    }
  }

 private:
  static __device__ constexpr int RowOf(int i) { return i / 2 % 2 * 8; }
  static __device__ constexpr int ColumnOf(int i) { return i / 4 * 8 + i % 2; }

  // MayBeUncertain is never false if a sum is uncertain.
  __device__ bool MayBeUncertain(const float (&sums)[kSums]) const {
    float least = fabsf(sums[0]);
#pragma unroll
    for (int i = 1; i < kSums; ++i) {  // NaN stays
      asm("min.NaN.f32 %0, %0, %1;" : "+f"(least) : "f"(fabsf(sums[i])));
    }
    const uint32_t inexact_sides = args_.a.tile_inexact[tile_a_] + args_.b.tile_inexact[tile_b_];
    const float norm = kMaxElement * static_cast<float>(args_.product.k);
    return !(least >= kLeastSumOfNorm * norm * static_cast<float>(inexact_sides));
  }

  __device__ uint64_t FindUncertain(const float (&sums)[kSums]) const {
    const int64_t line_a = int64_t{tile_a_} * kTensorLines + row_;
    const int64_t line_b = int64_t{tile_b_} * kTensorLines + column_;
    const auto is_inexact = [](const TensorOperand& operand, int64_t line) {
      return operand.inexact[line] != 0;
    };
    const auto least_of = [](const TensorOperand& operand, int64_t line) {
      return kLeastSumOfNorm * static_cast<float>(operand.norms[line]);
    };
    const bool inexact_a[2] = {is_inexact(args_.a, line_a), is_inexact(args_.a, line_a + 8)};
    const float least_a[2] = {least_of(args_.a, line_a), least_of(args_.a, line_a + 8)};
    uint64_t uncertain = 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int64_t line = line_b + ColumnOf(i);
      const float for_a = inexact_a[i / 2 % 2] ? least_of(args_.b, line) : 0.0f;
      const float for_b = is_inexact(args_.b, line) ? least_a[i / 2 % 2] : 0.0f;
      const bool certain = fabsf(sums[i]) >= for_a + for_b;
      if (!certain && RowOf(i) < rows_ && ColumnOf(i) < columns_) uncertain |= uint64_t{1} << i;
    }
    return uncertain;
  }

  // The list has no order: each element is computed alone.
  __device__ void ListRepairs() const {
    uint64_t uncertain = uncertain_;
    if (uncertain == 0) return;
    uint32_t place = atomicAdd(args_.repair_count, __popcll(uncertain));
    for (; uncertain != 0; uncertain &= uncertain - 1) {
      const int i = __ffsll(static_cast<long long>(uncertain)) - 1;
      const int element = (row_ + RowOf(i)) * kTensorLines + column_ + ColumnOf(i);
      args_.repairs[place++] = {tile_, static_cast<uint32_t>(element)};
    }
  }

  template <bool kReadC>
  __device__ void StoreAll(const float (&sums)[kSums]) const {
    const bool all = count_ == 0 && RowOf(kSums - 1) < rows_ && ColumnOf(kSums - 1) < columns_;
    if (all && args_.product.aligned_c) {
      StoreElements<kReadC, true>(sums);
    } else {
      StoreElements<kReadC, false>(sums);
    }
  }

  // kPairs: all elements are certain and in range, and their pairs are aligned.
  template <bool kReadC, bool kPairs>
  __device__ void StoreElements(const float (&sums)[kSums]) const {
    const SgemmArgs& product = args_.product;
    const float2* const of_a = args_.a.factors + int64_t{tile_a_} * kTensorLines + row_;
    const float2* const of_b = args_.b.factors + int64_t{tile_b_} * kTensorLines + column_;
    const float2 a[2] = {of_a[0], of_a[8]};
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      const float4 b = *reinterpret_cast<const float4*>(of_b + ColumnOf(i));
      const float2 row = a[i / 2 % 2];
      // Neither product of powers of two overflows. One is zero only if the result is.
      const float left = sums[i] * (row.x * b.x) * (row.y * b.y);
      const float right = sums[i + 1] * (row.x * b.z) * (row.y * b.w);
      const int64_t at = offset_ + RowOf(i) * product.n + ColumnOf(i);
      const float* const c = product.c + at;
      float* const out = product.out + at;
      if constexpr (kPairs) {
        float2 old = {};
        if constexpr (kReadC) old = *reinterpret_cast<const float2*>(c);
        *reinterpret_cast<float2*>(out) = {
            LinearCombination(product.alpha, left, product.beta, old.x),
            LinearCombination(product.alpha, right, product.beta, old.y)};
      } else {
        const auto store = [&](int j, float value) {
          if (RowOf(i) < rows_ && ColumnOf(i) + j < columns_ && (uncertain_ >> (i + j) & 1) == 0) {
            out[j] = LinearCombination(product.alpha, value, product.beta, kReadC ? c[j] : 0.0f);
          }
        };
        store(0, left);
        store(1, right);
      }
    }
  }

  const TensorArgs& args_;
  int batch_index_, row_, column_;
  int tile_a_, tile_b_;  // among the tiles of all matrices of the operand
  uint32_t tile_;        // among the tiles of C of all batch members
  int64_t rows_, columns_, offset_;
  uint64_t uncertain_ = 0;
  int count_ = 0;  // uncertain sums among the 16 x 128 that this thread has a share of
};

// The sums of a part are stored as its threads hold them: by packs of four, then by threads.
inline constexpr int kPacksOfThread = 64 / 4, kMultiplyingThreads = kWarpsOfTensorTile * 32;
inline constexpr int kPacksOfPart = kPacksOfThread * kMultiplyingThreads;
static_assert(kPacksOfPart * sizeof(float4) == kTensorTileBytes);

__device__ inline void StorePart(const TensorArgs& args, unsigned index, int thread,
                                 const float (&sums)[64]) {
  float4* const to = args.parts + int64_t{index} * kPacksOfPart + thread;
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i) {
    const float* const pack = &sums[i * 4];
    to[i * kMultiplyingThreads] = {pack[0], pack[1], pack[2], pack[3]};
  }
}

// AddParts adds the parts at `parts`, kPacksOfPart packs apart, in order. It sums the rounding
// error of each addition, and adds it at the end. The error is exact if the sum is not smaller than
// the part. Scaled sums are finite or NaN.
template <int kPacks>
__device__ inline void AddParts(const float4* parts, int count, float (&sums)[kPacks * 4]) {
  float lost[kPacks * 4];
#pragma unroll
  for (int i = 0; i < kPacks * 4; ++i) sums[i] = lost[i] = 0.0f;
#pragma unroll 4
  for (int part = 0; part < count; ++part) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const float4 pack = __ldg(&parts[part * int64_t{kPacksOfPart} + i * kMultiplyingThreads]);
      const float added[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[i * 4 + j] + added[j];
        lost[i * 4 + j] += added[j] - (sum - sums[i * 4 + j]);
        sums[i * 4 + j] = sum;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks * 4; ++i) sums[i] += lost[i];
}

// FinishParts runs a cluster of kFinishBlocks blocks per tile. A block finishes the 16 x 128 sums
// of one warp of the product; each of its own warps has 16 columns.
inline constexpr int kFinishBlocks = kWarpsOfTensorTile;
inline constexpr int kFinishWarps = 8, kFinishThreads = kFinishWarps * 32;

__global__ void __launch_bounds__(kFinishThreads)
    FinishParts(const __grid_constant__ TensorArgs args) {
#if JK_HAS_CLUSTERS
  constexpr int kPacks = kPacksOfThread / kFinishWarps;
  __shared__ int uncertain[kFinishWarps];
  const unsigned index = blockIdx.x / kFinishBlocks;
  const int warp_of_product = blockIdx.x % kFinishBlocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[kPacks * 4];
  AddParts<kPacks>(args.parts + int64_t{index} * args.splits * kPacksOfPart +
                       warp * kPacks * kMultiplyingThreads + warp_of_product * 32 + lane,
                   args.splits, sums);
  const int row = warp_of_product * 16 + lane / 4;
  const int column = warp * (kTensorLines / kFinishWarps) + lane % 4 * 2;
  TensorEpilogue<kPacks * 4> epilogue(args, TileOfIndex(args, index), row, column);
  const int of_warp = epilogue.CountUncertain(sums);
  if (lane == 0) uncertain[warp] = of_warp;
  __syncthreads();
  int count = 0;
#pragma unroll
  for (int i = 0; i < kFinishWarps; ++i) count += uncertain[i];
  bool certain = epilogue.Decide(count);
  // Recomputing a whole tile may read C, so nothing of that tile is stored here.
  if (args.product.beta != 0.0f) {
    WaitForCluster();
    certain = !epilogue.IsFlagged();
  }
  if (certain) epilogue.Store(sums);
#endif
}

}  // namespace jaxkernels
