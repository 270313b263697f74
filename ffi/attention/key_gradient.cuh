// The kernel of dK and dV, after that of dQ.
//
// Work split: a block has tiles of 128 keys and values, a warpgroup 64 of them. Scores are
// transposed, so that P and dS are operands A: a thread has two keys, and 32 of 64 queries at a
// time.
//
// Result valid in: args.dk, args.dv.
#pragma once

#include "attention/backward.cuh"

namespace jaxkernels {

inline constexpr int kColumnSums = 32;
inline constexpr int kPartRows = 2 * kColumnSums;  // queries of a part
template <int kDepth>
using KeyRing = GradientRing<kDepth, kPartRows>;

template <int kDepth>
struct KeyRows {
  float dk[kOutputs<kDepth>];  // times 2^dk_exponent
  float dv[kOutputs<kDepth>];  // times 2^dv_exponent
  int dk_exponent, dv_exponent;
};

// AddRows adds sums 2^-(exponents of rows + exponent) to out 2^-out_exponent.
// `out_exponent` becomes the least so far.
template <int kCount>
__device__ inline void AddRows(float (&out)[kCount], int& out_exponent,
                               const float (&sums)[kPartSums], const int (&exponents)[2],
                               int exponent) {
  // All threads of a row need one exponent. A thread has two rows; lanes of a quad have equal ones.
  const int least = min(out_exponent, min(exponents[0], exponents[1]) + exponent);
  const float rescale = PowerOfNegative(least - out_exponent);
  PromoteSums(out, sums,
              {PowerOfNegative(least - exponents[0] - exponent),
               PowerOfNegative(least - exponents[1] - exponent)},
              {rescale, rescale});
  out_exponent = least;
}

__device__ inline void LoadBiasMaskTransposed(const AttentionArgs& args, const HeadTile& tile,
                                              int key, int query, RowBiasMask& bias_mask) {
  const int column = min(key, args.k.rows - 1);
  const auto row = [&](int i) { return min(query + i / 2 * 8 + i % 2, args.q.rows - 1); };
  if (args.bias.data != nullptr) {
    const float* const from = args.bias.Row(tile, 0) + column * args.bias.column;
#pragma unroll
    for (int i = 0; i < kColumnSums / 2; ++i) {
      bias_mask.bias[i] = __ldg(from + row(i) * args.bias.row);
    }
  }
  if (args.mask.data == nullptr) return;
  const uint8_t* const from = args.mask.Row(tile, 0) + column * args.mask.column;
  bias_mask.bits = 0;
#pragma unroll
  for (int i = 0; i < kColumnSums / 2; ++i) {
    bias_mask.bits |= uint32_t{__ldg(from + row(i) * args.mask.row) != 0} << i;
  }
}

// HideTransposed hides scores outside the band; rows are keys, columns queries from `query` on.
__device__ inline void HideTransposed(float (&scores)[kColumnSums], const AttentionArgs& args,
                                      int key, int query, int keys, int queries) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const KeyRange all = QueriesOfKey(args.band, key + 8 * r, keys, queries);
    const KeyRange range = {all.begin - query, all.end - query};
    if (range.begin <= 0 && range.end >= kPartRows) continue;
#pragma unroll
    for (int i = 0; i < kColumnSums / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      if (!IsVisible(range, ColumnOf(element))) scores[element] = -kInfinity<float>;
    }
  }
}

struct KeyTileInfo {
  int first, keys, queries;  // first key, and the lengths
  int exponent_k, exponent_v, least_v;
};

// DifferentiateQueries adds 64 queries to half of dK and dV.
template <int kDepth, bool kBiasMask>
__device__ inline void DifferentiateQueries(const GradientArgs& args, const KeyRing<kDepth>& ring,
                                            typename KeyRing<kDepth>::Cursor& cursor,
                                            const HeadTile& tile, const KeyTileInfo& of_keys,
                                            int part, int half, const ThreadOfTile& thread,
                                            KeyRows<kDepth>& rows) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& forward = args.forward;
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  // Scores and dP.
  float p[kColumnSums], ds[kColumnSums];
  int slots[2][kHalves];
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    const int operand = i / kHalves, at = i % kHalves;
    slots[operand][at] = ring.Take(cursor);
    const int resident = operand * kHalves + HalfAt<kDepth>(at, half);
    StartScores<kDepth>(operand == 0 ? p : ds, ring.Resident(resident) + first_row,
                        ring.Slot(slots[operand][at]), at > 0);
  }
  const int slot_q = slots[0][kHalves - 1], slot_g = slots[1][kHalves - 1];
  const int64_t block = forward.q.Block(tile.batch, tile.head, part * kPartRows / kBlockRows);
  const RowStats* const stats = args.StatsOf(tile, 0) + part * kPartRows + thread.column;
  const int exponent_q = __ldg(&forward.q.exponents[block]);
  const int exponent_and_huge = __ldg(&args.g.exponents[block]);
  const int reference = exponent_and_huge >> 1;
  const int key = of_keys.first + thread.row, query = part * kPartRows + thread.column;
  [[maybe_unused]] RowBiasMask bias_mask[2];
  if constexpr (kBiasMask) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      LoadBiasMaskTransposed(forward, tile, key + 8 * r, query, bias_mask[r]);
  }
  WaitForProducts<kHalves>();
  LaunderRegisters(p);
  float factor = FactorOfScores(forward.scale, exponent_q + of_keys.exponent_k);
  if constexpr (kBiasMask) {
#pragma unroll
    for (int r = 0; r < 2; ++r) bias_mask[r].Apply(forward, factor, &p[2 * r]);
    if (forward.bias.data != nullptr) factor = kLog2E;
  }
  HideTransposed(p, forward, key, query, of_keys.keys, of_keys.queries);
  if (exponent_and_huge & 1) {
    ScaleHuge(p, 0, factor, true);
    factor = ScaleHuge(p, 1, factor, true);
  }
  // P = exp2(score - m). The largest P of a key's row decides its scale.
  float largest[2] = {-kInfinity<float>, -kInfinity<float>};
#pragma unroll
  for (int i = 0; i < kColumnSums / 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 shift_m = __ldg(reinterpret_cast<const float2*>(&stats[8 * i + j]));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& score = p[4 * i + 2 * r + j];
        score = fmaf(score, factor, -shift_m.y) + shift_m.x;
        largest[r] = fmaxf(largest[r], score);
      }
    }
  }
  int exponents[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = ceilf(MaximumOfQuad(largest[r]));
    const float shift = 14.0f - fminf(fmaxf(top, -300.0f), 300.0f);
    exponents[r] = static_cast<int>(shift);
#pragma unroll
    for (int i = 0; i < kColumnSums / 2; ++i) {
      float& score = p[i / 2 * 4 + 2 * r + i % 2];
      score = FastExp2(score + shift);
    }
  }
  WaitForProducts<0>();
  LaunderRegisters(ds);
  if constexpr (kHalves == 2) {
    ring.Release(slots[0][0]);
    ring.Release(slots[1][0]);
  }
  // dS = P (dP - delta).
  const float factor_v = PowerOfNegative(of_keys.least_v - of_keys.exponent_v);
#pragma unroll
  for (int i = 0; i < kColumnSums / 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float delta = __ldg(&stats[8 * i + j].delta);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = ds[4 * i + 2 * r + j];
        x = p[4 * i + 2 * r + j] * fmaf(x, factor_v, -delta);
      }
    }
  }
  // dV += P dO, dK += dS Q. The sums of dS Q start anew every 32 queries: wgmma truncates.
  float sums[kPartSums];
  const PairsOfA<kPartRows / 16> pairs_p(p);
  StartWeightedSum<kDepth, kPartRows>(sums, pairs_p, ring.Slot(slot_g));
  int ds_exponents[2];
  ScaleRows(ds, ds_exponents);
  const PairsOfA<2> pairs_ds[2] = {PairsOfA<2>(&ds[0]), PairsOfA<2>(&ds[16])};
  WaitForProducts<0>();
  LaunderRegisters(sums);
  AddRows(rows.dv, rows.dv_exponent, sums, exponents, reference);
  ring.Release(slot_g);
  float sums_k[2][kPartSums];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    StartWeightedSum<kDepth, kPartRows>(sums_k[i], pairs_ds[i],
                                        ring.Slot(slot_q) + i * 32 * kRowBytes);
  }
  ds_exponents[0] += exponents[0], ds_exponents[1] += exponents[1];
  const int exponent = reference + of_keys.least_v + exponent_q;
  WaitForProducts<1>();
  LaunderRegisters(sums_k[0]);
  AddRows(rows.dk, rows.dk_exponent, sums_k[0], ds_exponents, exponent);
  WaitForProducts<0>();
  LaunderRegisters(sums_k[1]);
  ring.Release(slot_q);
  AddRows(rows.dk, rows.dk_exponent, sums_k[1], ds_exponents, exponent);
}

// PartsOfQueries returns the parts of 64 queries that see any key of a tile of keys.
__device__ inline KeyRange PartsOfQueries(const AttentionArgs& args, const HeadTile& tile) {
  const int keys = AttentionArgs::Length(args.k_lengths, tile.batch, args.k.rows);
  const int queries = AttentionArgs::Length(args.q_lengths, tile.batch, args.q.rows);
  const KeyRange range = QueriesOfTile(args.band, tile.index * kBlockRows, keys, queries);
  if (range.begin == range.end) return {0, 0};
  return {range.begin / kPartRows, (range.end - 1) / kPartRows + 1};
}

template <int kDepth, bool kBiasMask>
__device__ inline void DifferentiateKeyTiles(const GradientArgs& args,
                                             const KeyRing<kDepth>& ring) {
  const AttentionArgs& forward = args.forward;
  const ThreadOfTile thread;
  typename KeyRing<kDepth>::Cursor cursor;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= args.key_order.Count()) return;
    const HeadTile key_tile = args.key_order.At(index);  // its head is one of keys
    ring.WaitForResident(round & 1);
    const KeyRange parts = PartsOfQueries(forward, key_tile);
    const int64_t block_k = forward.k.Block(key_tile.batch, key_tile.head, key_tile.index);
    const KeyTileInfo of_keys = {
        .first = key_tile.index * kBlockRows,
        .keys = AttentionArgs::Length(forward.k_lengths, key_tile.batch, forward.k.rows),
        .queries = AttentionArgs::Length(forward.q_lengths, key_tile.batch, forward.q.rows),
        .exponent_k = __ldg(&forward.k.exponents[block_k]),
        .exponent_v = __ldg(&forward.v.exponents[block_k]),
        .least_v = LeastExponent(forward.v, key_tile.batch, key_tile.head)};
#pragma unroll 1
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
      KeyRows<kDepth> rows;
#pragma unroll
      for (int i = 0; i < kOutputs<kDepth>; ++i) rows.dk[i] = rows.dv[i] = 0.0f;
      rows.dk_exponent = rows.dv_exponent = 400;  // times 2^-400, any sum is 0
#pragma unroll 1
      for (int member = 0; member < forward.head_group; ++member) {
        const HeadTile tile = {key_tile.batch, key_tile.head * forward.head_group + member, 0};
#pragma unroll 1
        for (int part = parts.begin; part < parts.end; ++part) {
          DifferentiateQueries<kDepth, kBiasMask>(args, ring, cursor, tile, of_keys, part, half,
                                                  thread, rows);
        }
      }
      const int64_t row = int64_t{key_tile.batch} * forward.k.rows + of_keys.first;
      if (half + 1 == PackedTile<kDepth>::kHalves) ring.ReleaseResident();
      const auto store = [&](const auto& sums, int exponent, float factor, float* to, int depth) {
        const int64_t pitch = int64_t{forward.k.heads} * depth;
        const int column = half * kHalfDepth;
        StoreGradients(sums, {-exponent, -exponent}, factor,
                       to + row * pitch + int64_t{key_tile.head} * depth + column, pitch,
                       forward.k.rows - of_keys.first, depth - column, thread);
      };
      store(rows.dk, rows.dk_exponent, args.scale, args.dk, forward.k.depth);
      store(rows.dv, rows.dv_exponent, 1.0f, args.dv, forward.v.depth);
    }
  }
}

template <int kDepth>
__device__ inline void CopyForKeys(const GradientArgs& args, const KeyRing<kDepth>& ring) {
  const AttentionArgs& forward = args.forward;
  typename KeyRing<kDepth>::Cursor cursor;
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= args.key_order.Count()) return;
    const HeadTile tile = args.key_order.At(index);
    CopyResidents<kDepth, kPartRows>(ring, round & 1, tile, forward.k, forward.v);
    const KeyRange parts = PartsOfQueries(forward, tile);
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
      for (int member = 0; member < forward.head_group; ++member) {
        const int head = tile.head * forward.head_group + member;
        for (int part = parts.begin; part < parts.end; ++part) {
          const int first = part * kPartRows;
          CopyStreamed<kDepth, kPartRows>(ring, cursor, {tile.batch, head, first / kBlockRows},
                                          half, first % kBlockRows, forward.q, args.g);
        }
      }
    }
  }
}

template <int kDepth, bool kBiasMask>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionKeyGradient(const __grid_constant__ GradientArgs args) {
  RunWarpgroups<KeyRing<kDepth>>(
      [&](const auto& ring) { CopyForKeys<kDepth>(args, ring); },
      [&](const auto& ring) { DifferentiateKeyTiles<kDepth, kBiasMask>(args, ring); });
}

}  // namespace jaxkernels
