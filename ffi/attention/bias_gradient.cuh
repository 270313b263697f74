// The kernel of dBias, after that of dQ: recomputes P and dS.
//
// Work split: a block has a tile of 128 x 128 elements of the bias, and a group of the heads (of
// batch members) that share it. It adds their dS in order, in registers. Groups have partial sums
// of their own, which the caller adds. No atomics, no array of all scores.
#pragma once

#include "attention/backward.cuh"

namespace jaxkernels {

struct BiasGradientArgs {
  GradientArgs gradient;
  float* sums;          // (groups, batch, heads, queries, keys), of the bias's own batch and heads
  int64_t group_pitch;  // elements of a group
  int batch, heads;     // of the bias
  int members;          // batch members of the launch
  int groups;
  bool adds;  // to the sums of an earlier launch
};

// SharedHeads are the heads that share the tile of a block, in groups.
struct SharedHeads {
  HeadTile first;  // batch member and head of the first, tile of queries
  int block;       // of keys
  int group;
  int batch, heads;  // members and heads that share it
  int begin, end;    // of the group

  __device__ SharedHeads(const BiasGradientArgs& args, int index) {
    const AttentionArgs& forward = args.gradient.forward;
    block = index % forward.k.blocks;
    index /= forward.k.blocks;
    first.index = index % forward.q.blocks;
    index /= forward.q.blocks;
    first.head = index % args.heads;
    index /= args.heads;
    first.batch = index % args.batch;
    group = index / args.batch;
    batch = args.batch == 1 ? args.members : 1;
    heads = args.heads == 1 ? forward.q.heads : 1;
    const int all = batch * heads, size = (all + args.groups - 1) / args.groups;
    begin = min(group * size, all), end = min(begin + size, all);
  }
  __device__ HeadTile At(int i) const {
    return {first.batch + i / heads, first.head + i % heads, first.index};
  }
};

__device__ inline bool IsComputed(const AttentionArgs& args, const HeadTile& tile, int block) {
  const KeyRange blocks = args.BlocksOf(tile);
  return block >= blocks.begin && block < blocks.end;
}

template <int kDepth>
using BiasRing = AttentionRing<kDepth, 1>;  // the resident tile is unused

template <int kDepth>
__device__ inline void CopyForBias(const BiasGradientArgs& args, const SharedHeads& shared,
                                   const BiasRing<kDepth>& ring) {
  const AttentionArgs& forward = args.gradient.forward;
  typename BiasRing<kDepth>::Cursor cursor;
  for (int i = shared.begin; i < shared.end; ++i) {
    const HeadTile tile = shared.At(i);
    if (!IsComputed(forward, tile, shared.block)) continue;
    const int key_head = tile.head / forward.head_group;
    const auto copy = [&](const SplitOperand& rows, const SplitOperand& columns) {
      for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
        ring.CopyTile(cursor, rows.Tile<kDepth>(tile.batch, tile.head, tile.index, half));
        ring.CopyTile(cursor, columns.Tile<kDepth>(tile.batch, key_head, shared.block, half));
      }
    };
    copy(forward.q, forward.k);
    copy(args.gradient.g, forward.v);
  }
}

template <int kDepth>
__device__ inline void AddScoreGradients(const BiasGradientArgs& args, const BiasRing<kDepth>& ring,
                                         typename BiasRing<kDepth>::Cursor& cursor,
                                         const HeadTile& tile, int block,
                                         const ThreadOfTile& thread, float (&sums)[kScores]) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& forward = args.gradient.forward;
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  // Scores and dP.
  float p[kScores], ds[kScores];
  int slots[2][2 * kHalves];
  const auto start = [&](float (&scores)[kScores], int (&slots)[2 * kHalves], int half) {
    int* const own = slots + 2 * half;
    own[0] = ring.Take(cursor), own[1] = ring.Take(cursor);
    StartScores<kDepth>(scores, ring.Slot(own[0]) + first_row, ring.Slot(own[1]), half > 0);
  };
#pragma unroll
  for (int half = 0; half < kHalves; ++half) start(p, slots[0], half);
  start(ds, slots[1], 0);
  const int key_head = tile.head / forward.head_group;
  const int64_t block_q = forward.q.Block(tile.batch, tile.head, tile.index);
  const int64_t block_k = forward.k.Block(tile.batch, key_head, block);
  const int exponent_q = __ldg(&forward.q.exponents[block_q]);
  const int exponent_k = __ldg(&forward.k.exponents[block_k]);
  const int exponent_v = __ldg(&forward.v.exponents[block_k]);
  const int least_v = LeastExponent(forward.v, tile.batch, key_head);
  const RowStats* const stats = args.gradient.StatsOf(tile, tile.index) + thread.row;
  TileBiasMask<1> bias_mask;
  bias_mask.Load(forward, tile, block, thread);
  WaitForProducts<1>();
  LaunderRegisters(p);
#pragma unroll
  for (const int slot : slots[0]) ring.Release(slot);
  if constexpr (kHalves == 2) start(ds, slots[1], 1);
  bias_mask.Apply(forward, tile, block, thread,
                  FactorOfScores(forward.scale, exponent_q + exponent_k), p);
  const int keys = AttentionArgs::Length(forward.k_lengths, tile.batch, forward.k.rows);
  HideByBand(p, forward, tile, block, keys, thread);
  // P = exp2(score - m).
  float m[2], delta[2], undo[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    m[i] = stats[8 * i].m, delta[i] = stats[8 * i].delta;
    const int exponent = min(max(-(stats[8 * i].e + least_v), -252), 252);
    undo[i][0] = PowerOfTwo(exponent / 2), undo[i][1] = PowerOfTwo(exponent - exponent / 2);
  }
  const float factor_v = PowerOfNegative(least_v - exponent_v);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int j = i / 2 % 2;
    // All products are rounded, as ScaleHuge does for huge m: a choice for each row would spill.
    p[i] = FastExp2(ScaledScore(p[i], kLog2E) - m[j]);
  }
  // The sums += dS = P (dP - delta).
  WaitForProducts<0>();
  LaunderRegisters(ds);
#pragma unroll
  for (const int slot : slots[1]) ring.Release(slot);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int j = i / 2 % 2;
    const float x = p[i] * fmaf(ds[i], factor_v, -delta[j]);
    sums[i] = fmaf(x * undo[j][0], undo[j][1], sums[i]);
  }
}

template <int kDepth>
__device__ inline void SumBiasGradient(const BiasGradientArgs& args, const SharedHeads& shared,
                                       const BiasRing<kDepth>& ring) {
  const AttentionArgs& forward = args.gradient.forward;
  const ThreadOfTile thread;
  typename BiasRing<kDepth>::Cursor cursor;
  float sums[kScores];
#pragma unroll
  for (float& x : sums) x = 0.0f;
#pragma unroll 1
  for (int i = shared.begin; i < shared.end; ++i) {
    const HeadTile tile = shared.At(i);
    if (!IsComputed(forward, tile, shared.block)) continue;
    AddScoreGradients<kDepth>(args, ring, cursor, tile, shared.block, thread, sums);
  }
  const int64_t matrix = int64_t{shared.first.batch} * args.heads + shared.first.head;
  float* const to =
      args.sums + shared.group * args.group_pitch + matrix * forward.q.rows * forward.k.rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = shared.first.index * kBlockRows + thread.row + 8 * r;
    if (query >= forward.q.rows) continue;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      const int key = shared.block * kBlockRows + ColumnOf(element) + thread.column;
      if (key >= forward.k.rows) continue;
      float& place = to[int64_t{query} * forward.k.rows + key];
      place = args.adds ? place + sums[element] : sums[element];
    }
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionBiasGradient(const __grid_constant__ BiasGradientArgs args) {
  const SharedHeads shared(args, static_cast<int>(blockIdx.x));
  RunWarpgroups<BiasRing<kDepth>>(
      [&](const auto& ring) { CopyForBias<kDepth>(args, shared, ring); },
      [&](const auto& ring) { SumBiasGradient<kDepth>(args, shared, ring); });
}

}  // namespace jaxkernels
