// The kernel of dQ, after SplitGradient.
//
// Work split: as in the forward pass. The kernel also corrects delta; see backward.cuh.
//
// Result valid in: args.dq, the delta of args.stats.
#pragma once

#include "attention/backward.cuh"

namespace jaxkernels {

template <int kDepth>
using QueryRing = GradientRing<kDepth, kBlockRows>;

// QueryRows are a thread's two rows of the kernel of dQ.
template <int kDepth>
struct QueryRows {
  float dq[kOutputs<kDepth>];      // times 2^(e + u + exponent)
  float sum_pk[kOutputs<kDepth>];  // sums of P K, times 2^exponent
  float m[2], delta[2];            // exp2(score - m) <= 2^15, or P would overflow float16
  float sum_ds[2], sum_p[2];       // sums of dS and of P, of the thread's columns
  int exponent;                    // least exponent of the blocks of keys so far
};

// DifferentiateBlock adds a block of keys to half of dQ. `last`: the resident tiles are not needed
// any more.
template <int kDepth, bool kBiasMask>
__device__ inline void DifferentiateBlock(const GradientArgs& args, const QueryRing<kDepth>& ring,
                                          typename QueryRing<kDepth>::Cursor& cursor,
                                          const HeadTile& tile, int block, int half, bool last,
                                          int keys, int least_v, const ThreadOfTile& thread,
                                          int exponent_q, QueryRows<kDepth>& rows) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& forward = args.forward;
  const int key_head = tile.head / forward.head_group;
  const int exponent_k = __ldg(&forward.k.exponents[forward.k.Block(tile.batch, key_head, block)]);
  const int exponent_v = __ldg(&forward.v.exponents[forward.v.Block(tile.batch, key_head, block)]);
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  float p[kScores], ds[kScores];
  int slots_k[kHalves], slots_v[kHalves];
  const auto start = [&](float (&scores)[kScores], int (&slots)[kHalves], int operand, int i) {
    slots[i] = ring.Take(cursor);
    const int tile = operand * kHalves + HalfAt<kDepth>(i, half);
    StartScores<kDepth>(scores, ring.Resident(tile) + first_row, ring.Slot(slots[i]), i > 0);
  };
  // Scores and dP.
#pragma unroll
  for (int i = 0; i < kHalves; ++i) start(p, slots_k, 0, i);
  start(ds, slots_v, 1, 0);
  [[maybe_unused]] TileBiasMask<1> bias_mask;
  if constexpr (kBiasMask) bias_mask.Load(forward, tile, block, thread);
  WaitForProducts<1>();
  LaunderRegisters(p);
  if constexpr (kHalves == 2) {
    ring.Release(slots_k[0]);
    start(ds, slots_v, 1, 1);
  }
  float factor = FactorOfScores(forward.scale, exponent_q + exponent_k);
  if constexpr (kBiasMask) factor = bias_mask.Apply(forward, tile, block, thread, factor, p);
  HideByBand(p, forward, tile, block, keys, thread);
  // P = exp2(score - m).
  float factors_p[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) factors_p[r] = ScaleHuge(p, r, factor, IsHuge(rows.m[r]));
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int r = i / 2 % 2;
    p[i] = FastExp2(fmaf(p[i], factors_p[r], -rows.m[r]));
    rows.sum_p[r] += p[i];
  }
  WaitForProducts<0>();
  LaunderRegisters(ds);
#pragma unroll
  for (int i = 0; i < kHalves; ++i) ring.Release(slots_v[i]);
  if (last) ring.ReleaseResident();
  // dS = P (dP - delta).
  const float factor_v = PowerOfNegative(least_v - exponent_v);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int r = i / 2 % 2;
    ds[i] = p[i] * fmaf(ds[i], factor_v, -rows.delta[r]);
    rows.sum_ds[r] += ds[i];
  }
  // P K, for the correction. The high parts of P suffice: the correction is small.
  uint32_t high[kStepsOfBlock][4];
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    const __half2 pair = __floats2half2_rn(p[2 * i], p[2 * i + 1]);
    high[i / 4][i % 4] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  float sums[kPartSums];
  const int slot_k = slots_k[kHalves - 1];
  const uint64_t tile_k = DescribeTile(ring.Slot(slot_k));
  FenceProducts();
#pragma unroll
  for (int i = 0; i < kStepsOfBlock; ++i) {
    Multiply(sums, high[i], tile_k + i * kDescriptorStepMN, i > 0);
  }
  CommitProducts();
  int exponents[2];
  ScaleRows(ds, exponents);
  const PairsOfA<kStepsOfBlock / 2> pairs[2] = {PairsOfA<kStepsOfBlock / 2>(&ds[0]),
                                                PairsOfA<kStepsOfBlock / 2>(&ds[32])};
  const int exponent = min(rows.exponent, exponent_k);
  const float factor_k = PowerOfNegative(exponent - exponent_k);
  const float factor_sums = PowerOfNegative(exponent - rows.exponent);
  const float rescale[2] = {factor_sums, factor_sums};
  rows.exponent = exponent;
  WaitForProducts<0>();
  LaunderRegisters(sums);
  PromoteSums(rows.sum_pk, sums, {factor_k, factor_k}, rescale);
  // dQ += dS K. The sums start anew every 64 keys: wgmma truncates.
  float sums_k[2][kPartSums];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    StartWeightedSum<kDepth, kBlockRows>(sums_k[i], pairs[i],
                                         ring.Slot(slot_k) + i * 64 * kRowBytes);
  }
  const float factors[2] = {factor_k * PowerOfTwo(-exponents[0]),
                            factor_k * PowerOfTwo(-exponents[1])};
  WaitForProducts<1>();
  LaunderRegisters(sums_k[0]);
  PromoteSums(rows.dq, sums_k[0], factors, rescale);
  WaitForProducts<0>();
  LaunderRegisters(sums_k[1]);
  ring.Release(slot_k);
  PromoteSums(rows.dq, sums_k[1], factors, {1.0f, 1.0f});
}

// FinishQueries corrects half of dQ and stores it. `last`: it corrects delta, too.
template <int kDepth>
__device__ inline void FinishQueries(const GradientArgs& args, const HeadTile& tile, int half,
                                     bool last, int least_v, const ThreadOfTile& thread,
                                     RowStats* stats, QueryRows<kDepth>& rows) {
  const AttentionArgs& forward = args.forward;
  int exponents[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum_p = SumOfQuad(rows.sum_p[r]), sum_ds = SumOfQuad(rows.sum_ds[r]);
    const float correction = sum_p == 0.0f ? 0.0f : sum_ds / sum_p;
#pragma unroll
    for (int i = 0; i < kOutputs<kDepth> / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      rows.dq[element] = fmaf(-correction, rows.sum_pk[element], rows.dq[element]);
    }
    if (last && thread.column == 0) stats[8 * r].delta = rows.delta[r] + correction;
    exponents[r] = -(stats[8 * r].e + least_v + rows.exponent);
  }
  const int first = tile.index * kBlockRows, column = half * kHalfDepth;
  const int64_t pitch = int64_t{forward.q.heads} * forward.q.depth;
  float* const to = args.dq + (int64_t{tile.batch} * forward.q.rows + first) * pitch +
                    int64_t{tile.head} * forward.q.depth + column;
  StoreGradients(rows.dq, exponents, args.scale, to, pitch, forward.q.rows - first,
                 forward.q.depth - column, thread);
}

template <int kDepth, bool kBiasMask>
__device__ inline void DifferentiateTiles(const GradientArgs& args, const QueryRing<kDepth>& ring) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& forward = args.forward;
  const ThreadOfTile thread;
  typename QueryRing<kDepth>::Cursor cursor;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= forward.order.Count()) return;
    const HeadTile tile = forward.order.At(index);
    ring.WaitForResident(round & 1);
    const KeyRange blocks = forward.BlocksOf(tile);
    const int keys = AttentionArgs::Length(forward.k_lengths, tile.batch, forward.k.rows);
    const int exponent_q =
        __ldg(&forward.q.exponents[forward.q.Block(tile.batch, tile.head, tile.index)]);
    const int least_v = LeastExponent(forward.v, tile.batch, tile.head / forward.head_group);
    RowStats* const stats = args.StatsOf(tile, tile.index) + thread.row;
    if (blocks.begin == blocks.end) ring.ReleaseResident();
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      const bool last = half + 1 == kHalves;
      QueryRows<kDepth> rows;
#pragma unroll
      for (int i = 0; i < kOutputs<kDepth>; ++i) rows.dq[i] = rows.sum_pk[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.m[r] = stats[8 * r].m, rows.delta[r] = stats[8 * r].delta;
        rows.sum_ds[r] = rows.sum_p[r] = 0.0f;
      }
      rows.exponent = 126;
#pragma unroll 1
      for (int block = blocks.begin; block < blocks.end; ++block) {
        DifferentiateBlock<kDepth, kBiasMask>(args, ring, cursor, tile, block, half,
                                              last && block + 1 == blocks.end, keys, least_v,
                                              thread, exponent_q, rows);
      }
      FinishQueries(args, tile, half, last, least_v, thread, stats, rows);
    }
  }
}

template <int kDepth>
__device__ inline void CopyForQueries(const GradientArgs& args, const QueryRing<kDepth>& ring) {
  const AttentionArgs& forward = args.forward;
  typename QueryRing<kDepth>::Cursor cursor;
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= forward.order.Count()) return;
    const HeadTile tile = forward.order.At(index);
    CopyResidents<kDepth, kBlockRows>(ring, round & 1, tile, forward.q, args.g);
    const KeyRange blocks = forward.BlocksOf(tile);
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
      for (int block = blocks.begin; block < blocks.end; ++block) {
        CopyStreamed<kDepth, kBlockRows>(ring, cursor,
                                         {tile.batch, tile.head / forward.head_group, block}, half,
                                         0, forward.k, forward.v);
      }
    }
  }
}

template <int kDepth, bool kBiasMask>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionQueryGradient(const __grid_constant__ GradientArgs args) {
  RunWarpgroups<QueryRing<kDepth>>(
      [&](const auto& ring) { CopyForQueries<kDepth>(args, ring); },
      [&](const auto& ring) { DifferentiateTiles<kDepth, kBiasMask>(args, ring); });
}

}  // namespace jaxkernels
