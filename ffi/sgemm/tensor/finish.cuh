// The epilogue of a tile of C: scaled sums in registers become elements of C, unless pairs of
// float16 may be too inaccurate for them.
//
// Owns: the test for uncertain sums, the list of those that are recomputed, and the stores. Must
// not know: how the sums are computed.
#ifndef JAXKERNELS_SGEMM_TENSOR_FINISH_CUH_
#define JAXKERNELS_SGEMM_TENSOR_FINISH_CUH_

#include "sgemm/epilogue.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/pair.cuh"

namespace jaxkernels {

struct TensorTile {
  int member, m, n;
};

// TensorFinish holds a thread's elements of a tile, in the layout of wgmma.cuh: rows `row` and
// `row` + 8, pairs of columns from `column` on. Bit i of a mask belongs to sums[i]. A thread has
// all 64 sums of a multiplying thread, or some of them (parts.cuh).
template <int kSums>
class TensorFinish {
 public:
  __device__ TensorFinish(const TensorArgs& args, const TensorTile& tile, int row, int column)
      : args_(args), member_(tile.member), row_(row), column_(column) {
    const MemberIndices members = IndicesOfMember(args.product, tile.member);
    tile_a_ = members.a * args.tiles_m + tile.m;
    tile_b_ = members.b * args.tiles_n + tile.n;
    tile_ = (static_cast<uint32_t>(tile.member) * args.tiles_m + tile.m) * args.tiles_n + tile.n;
    const int64_t first_row = int64_t{tile.m} * kTensorLines + row;
    const int64_t first_column = int64_t{tile.n} * kTensorLines + column;
    rows_ = args.product.m - first_row;
    columns_ = args.product.n - first_column;
    offset_ = (int64_t{tile.member} * args.product.m + first_row) * args.product.n + first_column;
  }

  // Examine finds uncertain sums. If the warp has too many of them, it returns false and flags the
  // tile, which is then recomputed as a whole.
  __device__ bool Examine(const float (&sums)[kSums]) { return Decide(CountUncertain(sums)); }

  // CountUncertain and Decide are the two steps of Examine, for 16 x 128 sums that are spread over
  // several warps. The first counts the uncertain sums of this warp. The second decides by the
  // count of all warps.
  __device__ int CountUncertain(const float (&sums)[kSums]) {
    if (__any_sync(~0u, MayBeUncertain(sums))) uncertain_ = FindUncertain(sums);
    return __reduce_add_sync(~0u, __popcll(uncertain_));
  }
  __device__ bool Decide(int count) {
    count_ = count;
    if (count_ <= kMostRepairsOfWarp) return true;
    if (threadIdx.x % 32 == 0 && atomicExch(&args_.flags[tile_], 1) == 0) {
      atomicAdd(&args_.flagged[member_], 1);
    }
    return false;
  }

  // IsFlagged tells whether any part of the tile was flagged, once all parts are decided.
  __device__ bool IsFlagged() const {
    return *const_cast<const volatile uint32_t*>(&args_.flags[tile_]) != 0;
  }

  // Store stores the certain sums, and lists the others for repair.
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
    const uint32_t marks = args_.a.tile_marks[tile_a_] + args_.b.tile_marks[tile_b_];
    const float norm = kMostOfElement * static_cast<float>(args_.product.k);
    return !(least >= kLeastSumOfNorm * norm * static_cast<float>(marks));
  }

  __device__ uint64_t FindUncertain(const float (&sums)[kSums]) const {
    const int64_t line_a = int64_t{tile_a_} * kTensorLines + row_;
    const int64_t line_b = int64_t{tile_b_} * kTensorLines + column_;
    const auto is_marked = [](const TensorOperand& operand, int64_t line) {
      return operand.marks[line] != 0;
    };
    const auto least_of = [](const TensorOperand& operand, int64_t line) {
      return kLeastSumOfNorm * static_cast<float>(operand.norms[line]);
    };
    const bool marked_a[2] = {is_marked(args_.a, line_a), is_marked(args_.a, line_a + 8)};
    const float least_a[2] = {least_of(args_.a, line_a), least_of(args_.a, line_a + 8)};
    uint64_t uncertain = 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int64_t line = line_b + ColumnOf(i);
      const float for_a = marked_a[i / 2 % 2] ? least_of(args_.b, line) : 0.0f;
      const float for_b = is_marked(args_.b, line) ? least_a[i / 2 % 2] : 0.0f;
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
        *reinterpret_cast<float2*>(out) = {Combine(product.alpha, left, product.beta, old.x),
                                           Combine(product.alpha, right, product.beta, old.y)};
      } else {
        const auto store = [&](int j, float value) {
          if (RowOf(i) < rows_ && ColumnOf(i) + j < columns_ && (uncertain_ >> (i + j) & 1) == 0) {
            out[j] = Combine(product.alpha, value, product.beta, kReadC ? c[j] : 0.0f);
          }
        };
        store(0, left);
        store(1, right);
      }
    }
  }

  const TensorArgs& args_;
  int member_, row_, column_;
  int tile_a_, tile_b_;  // among the tiles of all members of the operands
  uint32_t tile_;        // among the tiles of C of all members
  int64_t rows_, columns_, offset_;
  uint64_t uncertain_ = 0;
  int count_ = 0;  // uncertain sums among the 16 x 128 that this thread has a share of
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_FINISH_CUH_
