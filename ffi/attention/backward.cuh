// The parts that the kernels of the backward pass share. The kernels run in this order:
// split_gradient.cuh (dO, delta), query_gradient.cuh (dQ), key_gradient.cuh (dK, dV),
// bias_gradient.cuh (dBias). The last three recompute the scores; P and dS never leave registers.
// The kernels of dQ and of dK and dV compute depths above 64 in two halves, and recompute the
// scores for each.
//
// With m and l of the row sums, P = exp2(score - m) / l. dO / l is split with one exponent e for
// each row, so that rows of any size keep their precision: dO / l = G 2^-e. Then P 2^e dO =
// exp2(score - m) G, and dS 2^(e + u) = exp2(score - m) (G V 2^u - delta), where u is the least
// exponent of the values of a head and delta = sum(G O 2^u).
//
// delta must have the rounding errors of G V, or dS of a row would not sum to 0. So the kernel of
// dQ also sums dS, P and P K. It adds c = sum(dS) / sum(P) to delta, and subtracts c sum(P K) from
// dQ. It stores the corrected delta for the later kernels.
#pragma once

#include "attention/forward.cuh"

namespace jaxkernels {

// RowStats are the softmax statistics of a query, and delta. Queries that see nothing, and rows
// beyond the array, have infinite m and -infinite shift, so that P is 0.
struct alignas(16) RowStats {
  float shift;  // reference of the block - e
  float m;
  float delta;
  int e;
};

struct GradientArgs {
  AttentionArgs forward;  // without results
  SplitOperand g;         // dO; its exponents: 2 (least e of the block) + (any m is huge)
  const float* out;       // O
  RowStats* stats;        // 128 of each block of queries of each head
  float scale;            // of the scores
  float* dq;
  float* dk;
  float* dv;
  TileOrder key_order;  // of tiles of keys, heads of keys

  __device__ RowStats* StatsOf(const HeadTile& tile, int block) const {
    return stats + g.Block(tile.batch, tile.head, block) * kBlockRows;
  }
};

// LeastExponent returns the least exponent of a head's values. All lanes of a warp call it.
__device__ inline int LeastExponent(const SplitOperand& v, int batch, int head) {
  int least = 126;
  for (int i = static_cast<int>(threadIdx.x % 32); i < v.blocks; i += 32) {
    least = min(least, __ldg(&v.exponents[v.Block(batch, head, i)]));
  }
  return __reduce_min_sync(~0u, least);
}

// ScaleByPower returns x 2^exponent. Exponents beyond +-500 are clamped: 0 or infinity either way.
__device__ inline float ScaleByPower(float x, int exponent) {
  exponent = min(max(exponent, -500), 500);
  const int quarter = exponent / 4;
  const float factor = PowerOfTwo(quarter);
  return x * factor * factor * factor * PowerOfTwo(exponent - 3 * quarter);
}

// ScaleRows brings a thread's two rows of kSums elements into the range of pairs. `exponents`
// become those of the rows.
template <int kSums>
__device__ inline void ScaleRows(float (&sums)[kSums], int (&exponents)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      largest = fmaxf(largest, fmaxf(fabsf(sums[4 * i + 2 * r]), fabsf(sums[4 * i + 2 * r + 1])));
    }
    exponents[r] = ExponentOf(FiniteBits(MaximumOfQuad(largest)));
    const float scale = PowerOfTwo(exponents[r]);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      sums[4 * i + 2 * r] *= scale, sums[4 * i + 2 * r + 1] *= scale;
    }
  }
}

// A gradient kernel has two resident operands, and a ring of two others.
template <int kDepth, int kSlotRows>
using GradientRing = AttentionRing<kDepth, 2 * PackedTile<kDepth>::kHalves, kSlotRows>;

// HalfAt returns the half of the depth at place i. The half of the results is the last.
template <int kDepth>
__device__ inline int HalfAt(int i, int half_of_results) {
  return (half_of_results + 1 + i) % PackedTile<kDepth>::kHalves;
}

// StoreGradients stores two rows of a thread times 2^exponents, at `to` + row * pitch.
template <int kCount>
__device__ inline void StoreGradients(const float (&sums)[kCount], const int (&exponents)[2],
                                      float factor, float* to, int64_t pitch, int rows, int depth,
                                      const ThreadOfTile& thread) {
  const bool pairs = depth % 2 == 0 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = thread.row + 8 * r;
    if (row >= rows) continue;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const int column = 2 * i + thread.column;
      const float2 pair = {ScaleByPower(sums[i + 2 * r], exponents[r]) * factor,
                           ScaleByPower(sums[i + 2 * r + 1], exponents[r]) * factor};
      StorePair(pair, to + row * pitch + column, depth - column, pairs);
    }
  }
}

template <int kDepth, int kSlotRows>
__device__ inline void CopyResidents(const GradientRing<kDepth, kSlotRows>& ring, uint32_t parity,
                                     const HeadTile& tile, const SplitOperand& a,
                                     const SplitOperand& b) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const char* from[2 * kHalves];
#pragma unroll
  for (int i = 0; i < kHalves; ++i) {
    from[i] = a.Tile<kDepth>(tile.batch, tile.head, tile.index, i);
    from[kHalves + i] = b.Tile<kDepth>(tile.batch, tile.head, tile.index, i);
  }
  ring.CopyResident(parity, from);
}

template <int kDepth, int kSlotRows>
__device__ inline void CopyStreamed(const GradientRing<kDepth, kSlotRows>& ring,
                                    typename GradientRing<kDepth, kSlotRows>::Cursor& cursor,
                                    const HeadTile& block, int half, int first_row,
                                    const SplitOperand& a, const SplitOperand& b) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  for (int i = 0; i < 2 * kHalves; ++i) {
    const SplitOperand& from = i < kHalves ? a : b;
    const int at = HalfAt<kDepth>(i, half);
    ring.CopyTile(cursor, from.Tile<kDepth>(block.batch, block.head, block.index, at), first_row);
  }
}

}  // namespace jaxkernels
