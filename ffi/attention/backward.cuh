// The backward pass of attention on tensor cores: a pass over dO, a kernel of dQ, then one of dK
// and dV. Both recompute the scores; P and dS never leave registers. Depths above 64 are computed
// in two halves, and each half recomputes the scores.
//
// With r and s of the row sums, P = exp2(score - r) / s. dO / s is split with one exponent e for
// each row, so that rows of any size keep their precision: dO / s = G 2^-e. Then P 2^e dO =
// exp2(score - r) G, and dS 2^(e + u) = exp2(score - r) (G V 2^u - delta), where u is the least
// exponent of the values of a head and delta = sum(G O 2^u).
//
// Errors of delta and of G V must cancel as they do if one follows from the other. The kernel of dQ
// also sums dS and P K: c = sum(dS) / sum(P) corrects delta by c, and dQ by c P K. It stores the
// corrected delta for the kernel of dK and dV. (tests/support/attention_pairs.py models this.)
#ifndef JAXKERNELS_ATTENTION_BACKWARD_CUH_
#define JAXKERNELS_ATTENTION_BACKWARD_CUH_

#include "attention/forward.cuh"

namespace jaxkernels {

// RowFacts are what the backward pass needs of a query. Queries that see nothing, and rows beyond
// the array, have infinite r and -infinite shift, so that P is 0.
struct alignas(16) RowFacts {
  float shift;  // reference of the block - e
  float r;
  float delta;
  int e;
};

struct GradientArgs {
  AttentionArgs forward;  // without results
  SplitOperand g;         // dO; its exponents: 2 (least e of the block) + (any r is huge)
  const float* out;       // O
  RowFacts* facts;        // 128 of each block of queries of each head
  float scale;            // of the scores
  float* dq;
  float* dk;
  float* dv;
  TileOrder key_order;  // of tiles of keys, heads of keys

  __device__ RowFacts* FactsOf(const QueryTile& tile, int block) const {
    return facts + g.Block(tile.batch, tile.head, block) * kBlockRows;
  }
};

// UnitOfValues returns the least exponent of a head's values. All lanes of a warp call it.
__device__ inline int UnitOfValues(const SplitOperand& v, int batch, int head) {
  int unit = 126;
  for (int i = static_cast<int>(threadIdx.x % 32); i < v.blocks; i += 32) {
    unit = min(unit, __ldg(&v.exponents[v.Block(batch, head, i)]));
  }
  return __reduce_min_sync(~0u, unit);
}

// ScaleByPower returns x 2^exponent for |exponent| <= 500; 0 and infinity where they are nearest.
__device__ inline float ScaleByPower(float x, int exponent) {
  exponent = min(max(exponent, -500), 500);
  const int quarter = exponent / 4;
  const float factor = PowerOfTwo(quarter);
  return x * factor * factor * factor * PowerOfTwo(exponent - 3 * quarter);
}

// SplitGradient splits a block of rows of dO / s, and collects the facts about its rows.
template <int kDepth>
__global__ void __launch_bounds__(kSplitAttentionThreads)
    SplitGradient(const __grid_constant__ GradientArgs args) {
  constexpr int kChunks = kDepth / kSplitElements;  // lanes of a row
  constexpr int kRowsAtOnce = kSplitAttentionThreads / kChunks, kCount = kBlockRows / kRowsAtOnce;
  const SplitOperand& g = args.g;
  const int64_t block = blockIdx.x;
  const int first = static_cast<int>(block % g.blocks) * kBlockRows;
  const int64_t all_head = block / g.blocks;
  const int batch = static_cast<int>(all_head / g.heads),
            head = static_cast<int>(all_head % g.heads);
  const int chunk = threadIdx.x % kChunks, column = chunk * kSplitElements;
  const int unit = UnitOfValues(args.forward.v, batch, head / args.forward.head_group);
  char* const tiles = g.packed + block * BytesOfBlock(kDepth);
  int exponents[kCount];
  int least = 1 << 20;
  bool huge = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    const int row = first + local;
    const int64_t at = ((int64_t{batch} * g.rows + row) * g.heads + head) * g.depth + column;
    float v[kSplitElements], out[kSplitElements];
    uint32_t largest = 0;
    const float2 sums = row < g.rows ? __ldg(&args.forward.row_sums[all_head * g.rows + row])
                                     : make_float2(0.0f, 0.0f);
    const bool sees = sums.y != 0.0f, is_nan = isnan(sums.y);
    const int valid = sees ? g.depth - column : 0;  // dO of other rows may be NaN
    LoadChunk(g.data + at, valid, g.packs, v);
    LoadChunk(args.out + at, valid, g.packs, out);
#pragma unroll
    for (const float x : v) largest = max(largest, FiniteBits(x));
#pragma unroll
    for (int lane = 1; lane < kChunks; lane *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lane));
    }
    const int exponent = ExponentOf(largest);
    const uint32_t bits = __float_as_uint(sums.y);  // s = 2^power mantissa
    const int power = sees && !is_nan ? static_cast<int>(bits >> 23) - 127 : 0;
    const float mantissa =
        is_nan ? sums.y : __uint_as_float((sees ? bits & 0x7fffff : 0) | 0x3f800000);
    float delta = 0.0f;
#pragma unroll
    for (int j = 0; j < kSplitElements; ++j) {
      v[j] = v[j] * PowerOfTwo(exponent) / mantissa;
      delta = fmaf(v[j], out[j] * PowerOfTwo(unit), delta);
    }
    StorePairs<kDepth>(v, tiles, local, chunk);
#pragma unroll
    for (int lane = 1; lane < kChunks; lane *= 2) delta += __shfl_xor_sync(~0u, delta, lane);
    exponents[i] = exponent + power;
    if (sees) least = min(least, exponents[i]);
    huge |= sees && IsHuge(sums.x);
    if (chunk == 0) {
      args.facts[block * kBlockRows + local] = {-kInfinity<float>, sees ? sums.x : kInfinity<float>,
                                                delta, exponents[i]};
    }
  }
  // LargestOfBlock takes positive numbers.
  const int reference =
      (1 << 20) - static_cast<int>(LargestOfBlock(static_cast<uint32_t>((1 << 20) - least)));
  const int any_huge = __syncthreads_or(huge) != 0;
  if (threadIdx.x == 0) g.exponents[block] = 2 * reference + any_huge;
  if (chunk != 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    RowFacts& facts = args.facts[block * kBlockRows + local];
    if (facts.r != kInfinity<float>) facts.shift = static_cast<float>(reference - exponents[i]);
  }
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
template <int kDepth>
using QueryRing = GradientRing<kDepth, kBlockRows>;

// HalfAt returns the half of the depth at place i. The half of the results is the last.
template <int kDepth>
__device__ inline int HalfAt(int i, int half_of_results) {
  return (half_of_results + 1 + i) % PackedTile<kDepth>::kHalves;
}

// QueryRows are a thread's two rows of the kernel of dQ.
template <int kDepth>
struct QueryRows {
  float dq[kOutputs<kDepth>];        // times 2^(e + u + unit)
  float weighted[kOutputs<kDepth>];  // sums of P K, times 2^unit
  float r[2], delta[2];              // exp2(score - r) <= 2^15, or P would overflow float16
  float slack[2], mass[2];           // sums of dS and of P, of the thread's columns
  int unit;                          // least exponent of the blocks of keys so far
};

// DifferentiateBlock adds a block of keys to half of dQ. `last`: the resident tiles are not needed
// any more.
template <int kDepth, bool kSides>
__device__ inline void DifferentiateBlock(const GradientArgs& gradient,
                                          const QueryRing<kDepth>& ring,
                                          typename QueryRing<kDepth>::Cursor& cursor,
                                          const QueryTile& tile, int block, int half, bool last,
                                          int keys, int unit_v, const ThreadOfTile& thread,
                                          int exponent_q, QueryRows<kDepth>& rows) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& args = gradient.forward;
  const int key_head = tile.head / args.head_group;
  const int exponent_k = __ldg(&args.k.exponents[args.k.Block(tile.batch, key_head, block)]);
  const int exponent_v = __ldg(&args.v.exponents[args.v.Block(tile.batch, key_head, block)]);
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  float p[kScores], ds[kScores];
  int slots_k[kHalves], slots_v[kHalves];
  const auto start = [&](float (&scores)[kScores], int (&slots)[kHalves], int operand, int i) {
    slots[i] = ring.Take(cursor);
    const int tile = operand * kHalves + HalfAt<kDepth>(i, half);
    StartScores<kDepth>(scores, ring.Resident(tile) + first_row, ring.Slot(slots[i]), i > 0);
  };
#pragma unroll
  for (int i = 0; i < kHalves; ++i) start(p, slots_k, 0, i);
  start(ds, slots_v, 1, 0);
  [[maybe_unused]] TileSides<1> sides;
  if constexpr (kSides) sides.Load(args, tile, block, thread);
  WaitForProducts<1>();
  LaunderRegisters(p);
  if constexpr (kHalves == 2) {
    ring.Release(slots_k[0]);
    start(ds, slots_v, 1, 1);
  }
  float factor = FactorOfScores(args.scale, exponent_q + exponent_k);
  if constexpr (kSides) factor = sides.Apply(args, tile, block, thread, factor, p);
  HideByBand(p, args, tile, block, keys, thread);
  float factors_p[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) factors_p[r] = ScaleHuge(p, r, factor, IsHuge(rows.r[r]));
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int r = i / 2 % 2;
    p[i] = FastExp2(fmaf(p[i], factors_p[r], -rows.r[r]));
    rows.mass[r] += p[i];
  }
  WaitForProducts<0>();
  LaunderRegisters(ds);
#pragma unroll
  for (int i = 0; i < kHalves; ++i) ring.Release(slots_v[i]);
  if (last) ring.ReleaseResident();
  const float factor_v = PowerOfNegative(unit_v - exponent_v);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int r = i / 2 % 2;
    ds[i] = p[i] * fmaf(ds[i], factor_v, -rows.delta[r]);
    rows.slack[r] += ds[i];
  }
  // The high parts suffice: the correction is small.
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
    Multiply64x64(sums, high[i], tile_k + i * kDescriptorStepMN, i > 0);
  }
  CommitProducts();
  int exponents[2];
  ScaleRows(ds, exponents);
  const PairsOfA<kStepsOfBlock / 2> pairs[2] = {PairsOfA<kStepsOfBlock / 2>(&ds[0]),
                                                PairsOfA<kStepsOfBlock / 2>(&ds[32])};
  const int unit = min(rows.unit, exponent_k);
  const float factor_k = PowerOfNegative(unit - exponent_k);
  const float old = PowerOfNegative(unit - rows.unit);
  const float rescale[2] = {old, old};
  rows.unit = unit;
  WaitForProducts<0>();
  LaunderRegisters(sums);
  PromoteSums(rows.weighted, sums, {factor_k, factor_k}, rescale);
  // The sums of dS K start anew every 64 keys: wgmma truncates.
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

// FinishQueries corrects half of dQ and stores it. `last`: it corrects delta, too.
template <int kDepth>
__device__ inline void FinishQueries(const GradientArgs& gradient, const QueryTile& tile, int half,
                                     bool last, int unit_v, const ThreadOfTile& thread,
                                     RowFacts* facts, QueryRows<kDepth>& rows) {
  const AttentionArgs& args = gradient.forward;
  int exponents[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float mass = SumOfQuad(rows.mass[r]), slack = SumOfQuad(rows.slack[r]);
    const float correction = mass == 0.0f ? 0.0f : slack / mass;
#pragma unroll
    for (int i = 0; i < kOutputs<kDepth> / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      rows.dq[element] = fmaf(-correction, rows.weighted[element], rows.dq[element]);
    }
    if (last && thread.column == 0) facts[8 * r].delta = rows.delta[r] + correction;
    exponents[r] = -(facts[8 * r].e + unit_v + rows.unit);
  }
  const int first = tile.tile * kBlockRows, column = half * kHalfDepth;
  const int64_t pitch = int64_t{args.q.heads} * args.q.depth;
  float* const to = gradient.dq + (int64_t{tile.batch} * args.q.rows + first) * pitch +
                    int64_t{tile.head} * args.q.depth + column;
  StoreGradients(rows.dq, exponents, gradient.scale, to, pitch, args.q.rows - first,
                 args.q.depth - column, thread);
}

template <int kDepth, bool kSides>
__device__ inline void DifferentiateTiles(const GradientArgs& gradient,
                                          const QueryRing<kDepth>& ring) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& args = gradient.forward;
  const ThreadOfTile thread;
  typename QueryRing<kDepth>::Cursor cursor;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= args.order.Count()) return;
    const QueryTile tile = args.order.At(index);
    ring.WaitForResident(round & 1);
    const KeyRange blocks = args.BlocksOf(tile);
    const int keys = AttentionArgs::Length(args.k_lengths, tile.batch, args.k.rows);
    const int exponent_q = __ldg(&args.q.exponents[args.q.Block(tile.batch, tile.head, tile.tile)]);
    const int unit_v = UnitOfValues(args.v, tile.batch, tile.head / args.head_group);
    RowFacts* const facts = gradient.FactsOf(tile, tile.tile) + thread.row;
    if (blocks.begin == blocks.end) ring.ReleaseResident();
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      const bool last = half + 1 == kHalves;
      QueryRows<kDepth> rows;
#pragma unroll
      for (int i = 0; i < kOutputs<kDepth>; ++i) rows.dq[i] = rows.weighted[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.r[r] = facts[8 * r].r, rows.delta[r] = facts[8 * r].delta;
        rows.slack[r] = rows.mass[r] = 0.0f;
      }
      rows.unit = 126;
#pragma unroll 1
      for (int block = blocks.begin; block < blocks.end; ++block) {
        DifferentiateBlock<kDepth, kSides>(gradient, ring, cursor, tile, block, half,
                                           last && block + 1 == blocks.end, keys, unit_v, thread,
                                           exponent_q, rows);
      }
      FinishQueries(gradient, tile, half, last, unit_v, thread, facts, rows);
    }
  }
}

// CopyResidents copies a tile of two operands.
template <int kDepth, int kSlotRows>
__device__ inline void CopyResidents(const GradientRing<kDepth, kSlotRows>& ring, uint32_t parity,
                                     const QueryTile& tile, const SplitOperand& a,
                                     const SplitOperand& b) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const char* from[2 * kHalves];
#pragma unroll
  for (int i = 0; i < kHalves; ++i) {
    from[i] = a.Tile<kDepth>(tile.batch, tile.head, tile.tile, i);
    from[kHalves + i] = b.Tile<kDepth>(tile.batch, tile.head, tile.tile, i);
  }
  ring.CopyResident(parity, from);
}

// CopyStreamed copies the halves of a block of two operands.
template <int kDepth, int kSlotRows>
__device__ inline void CopyStreamed(const GradientRing<kDepth, kSlotRows>& ring,
                                    typename GradientRing<kDepth, kSlotRows>::Cursor& cursor,
                                    const QueryTile& block, int half, int first_row,
                                    const SplitOperand& a, const SplitOperand& b) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  for (int i = 0; i < 2 * kHalves; ++i) {
    const SplitOperand& from = i < kHalves ? a : b;
    const int at = HalfAt<kDepth>(i, half);
    ring.CopyTile(cursor, from.Tile<kDepth>(block.batch, block.head, block.tile, at), first_row);
  }
}

template <int kDepth>
__device__ inline void CopyForQueries(const GradientArgs& gradient, const QueryRing<kDepth>& ring) {
  const AttentionArgs& args = gradient.forward;
  typename QueryRing<kDepth>::Cursor cursor;
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= args.order.Count()) return;
    const QueryTile tile = args.order.At(index);
    CopyResidents<kDepth, kBlockRows>(ring, round & 1, tile, args.q, gradient.g);
    const KeyRange blocks = args.BlocksOf(tile);
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
      for (int block = blocks.begin; block < blocks.end; ++block) {
        CopyStreamed<kDepth, kBlockRows>(ring, cursor,
                                         {tile.batch, tile.head / args.head_group, block}, half, 0,
                                         args.k, args.v);
      }
    }
  }
}

// AttentionQueryGradient computes dQ, and corrects delta.
template <int kDepth, bool kSides>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionQueryGradient(const __grid_constant__ GradientArgs args) {
  RunWarpgroups<QueryRing<kDepth>>(
      [&](const auto& ring) { CopyForQueries<kDepth>(args, ring); },
      [&](const auto& ring) { DifferentiateTiles<kDepth, kSides>(args, ring); });
}

// The kernel of dK and dV: a block has tiles of 128 keys and values, a warpgroup 64 of them. Scores
// are transposed, so that P and dS are operands A: a thread has two keys, and 32 of 64 queries at a
// time.
inline constexpr int kColumnSums = 32;
inline constexpr int kPartRows = 2 * kColumnSums;  // queries of a part
template <int kDepth>
using KeyRing = GradientRing<kDepth, kPartRows>;

template <int kDepth>
struct KeyRows {
  float dk[kOutputs<kDepth>];  // times 2^unit_k
  float dv[kOutputs<kDepth>];  // times 2^unit_v
  int unit_k, unit_v;
};

// AddRows adds sums 2^-(exponents of rows + exponent) to out 2^-unit. The unit becomes the least so
// far.
template <int kCount>
__device__ inline void AddRows(float (&out)[kCount], int& unit, const float (&sums)[kPartSums],
                               const int (&exponents)[2], int exponent) {
  // All threads of a row need one unit, and a thread has two rows; those of a quad are equal.
  const int least = min(unit, min(exponents[0], exponents[1]) + exponent);
  const float old = PowerOfNegative(least - unit);
  PromoteSums(out, sums,
              {PowerOfNegative(least - exponents[0] - exponent),
               PowerOfNegative(least - exponents[1] - exponent)},
              {old, old});
  unit = least;
}

// LoadSidesTransposed loads the sides of a key and of queries from `query` on.
__device__ inline void LoadSidesTransposed(const AttentionArgs& args, const QueryTile& tile,
                                           int key, int query, RowSides& sides) {
  const int column = min(key, args.k.rows - 1);
  const auto row = [&](int i) { return min(query + i / 2 * 8 + i % 2, args.q.rows - 1); };
  if (args.bias.data != nullptr) {
    const float* const from = args.bias.Row(tile, 0) + column * args.bias.column;
#pragma unroll
    for (int i = 0; i < kColumnSums / 2; ++i) {
      sides.bias[i] = __ldg(from + row(i) * args.bias.row);
    }
  }
  if (args.mask.data == nullptr) return;
  const uint8_t* const from = args.mask.Row(tile, 0) + column * args.mask.column;
  sides.bits = 0;
#pragma unroll
  for (int i = 0; i < kColumnSums / 2; ++i) {
    sides.bits |= uint32_t{__ldg(from + row(i) * args.mask.row) != 0} << i;
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

// KeyFacts are what the kernel of dK and dV needs of a tile of keys.
struct KeyFacts {
  int first, keys, queries;  // first key, and the lengths
  int exponent_k, exponent_v, unit_v;
};

// DifferentiateQueries adds 64 queries to half of dK and dV.
template <int kDepth, bool kSides>
__device__ inline void DifferentiateQueries(const GradientArgs& gradient,
                                            const KeyRing<kDepth>& ring,
                                            typename KeyRing<kDepth>::Cursor& cursor,
                                            const QueryTile& tile, const KeyFacts& of_keys,
                                            int part, int half, const ThreadOfTile& thread,
                                            KeyRows<kDepth>& rows) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const AttentionArgs& args = gradient.forward;
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
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
  const int64_t block = args.q.Block(tile.batch, tile.head, part * kPartRows / kBlockRows);
  const RowFacts* const facts = gradient.FactsOf(tile, 0) + part * kPartRows + thread.column;
  const int exponent_q = __ldg(&args.q.exponents[block]);
  const int of_block = __ldg(&gradient.g.exponents[block]), reference = of_block >> 1;
  const int key = of_keys.first + thread.row, query = part * kPartRows + thread.column;
  [[maybe_unused]] RowSides sides[2];
  if constexpr (kSides) {
#pragma unroll
    for (int r = 0; r < 2; ++r) LoadSidesTransposed(args, tile, key + 8 * r, query, sides[r]);
  }
  WaitForProducts<kHalves>();
  LaunderRegisters(p);
  float factor = FactorOfScores(args.scale, exponent_q + of_keys.exponent_k);
  if constexpr (kSides) {
#pragma unroll
    for (int r = 0; r < 2; ++r) sides[r].Apply(args, factor, &p[2 * r]);
    if (args.bias.data != nullptr) factor = kLog2E;
  }
  HideTransposed(p, args, key, query, of_keys.keys, of_keys.queries);
  if (of_block & 1) {
    ScaleHuge(p, 0, factor, true);
    factor = ScaleHuge(p, 1, factor, true);
  }
  // The largest P of a key's row decides its scale.
  float largest[2] = {-kInfinity<float>, -kInfinity<float>};
#pragma unroll
  for (int i = 0; i < kColumnSums / 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // shift and r
      const float2 fact = __ldg(reinterpret_cast<const float2*>(&facts[8 * i + j]));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& score = p[4 * i + 2 * r + j];
        score = fmaf(score, factor, -fact.y) + fact.x;
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
  const float factor_v = PowerOfNegative(of_keys.unit_v - of_keys.exponent_v);
#pragma unroll
  for (int i = 0; i < kColumnSums / 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float delta = __ldg(&facts[8 * i + j].delta);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = ds[4 * i + 2 * r + j];
        x = p[4 * i + 2 * r + j] * fmaf(x, factor_v, -delta);
      }
    }
  }
  float sums[kPartSums];
  const PairsOfA<kPartRows / 16> pairs_p(p);
  StartWeightedSum<kDepth, kPartRows>(sums, pairs_p, ring.Slot(slot_g));
  int more[2];
  ScaleRows(ds, more);
  // The sums of dS Q start anew every 32 queries: wgmma truncates.
  const PairsOfA<2> pairs_ds[2] = {PairsOfA<2>(&ds[0]), PairsOfA<2>(&ds[16])};
  WaitForProducts<0>();
  LaunderRegisters(sums);
  AddRows(rows.dv, rows.unit_v, sums, exponents, reference);
  ring.Release(slot_g);
  float sums_k[2][kPartSums];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    StartWeightedSum<kDepth, kPartRows>(sums_k[i], pairs_ds[i],
                                        ring.Slot(slot_q) + i * 32 * kRowBytes);
  }
  more[0] += exponents[0], more[1] += exponents[1];
  const int exponent = reference + of_keys.unit_v + exponent_q;
  WaitForProducts<1>();
  LaunderRegisters(sums_k[0]);
  AddRows(rows.dk, rows.unit_k, sums_k[0], more, exponent);
  WaitForProducts<0>();
  LaunderRegisters(sums_k[1]);
  ring.Release(slot_q);
  AddRows(rows.dk, rows.unit_k, sums_k[1], more, exponent);
}

// PartsOfQueries returns the parts of 64 queries that see any key of a tile of keys.
__device__ inline KeyRange PartsOfQueries(const AttentionArgs& args, const QueryTile& tile) {
  const int keys = AttentionArgs::Length(args.k_lengths, tile.batch, args.k.rows);
  const int queries = AttentionArgs::Length(args.q_lengths, tile.batch, args.q.rows);
  const KeyRange range = QueriesOfTile(args.band, tile.tile * kBlockRows, keys, queries);
  if (range.begin == range.end) return {0, 0};
  return {range.begin / kPartRows, (range.end - 1) / kPartRows + 1};
}

template <int kDepth, bool kSides>
__device__ inline void DifferentiateKeyTiles(const GradientArgs& gradient,
                                             const KeyRing<kDepth>& ring) {
  const AttentionArgs& args = gradient.forward;
  const ThreadOfTile thread;
  typename KeyRing<kDepth>::Cursor cursor;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= gradient.key_order.Count()) return;
    const QueryTile key_tile = gradient.key_order.At(index);  // its head is one of keys
    ring.WaitForResident(round & 1);
    const KeyRange parts = PartsOfQueries(args, key_tile);
    const int64_t block_k = args.k.Block(key_tile.batch, key_tile.head, key_tile.tile);
    const KeyFacts of_keys = {
        .first = key_tile.tile * kBlockRows,
        .keys = AttentionArgs::Length(args.k_lengths, key_tile.batch, args.k.rows),
        .queries = AttentionArgs::Length(args.q_lengths, key_tile.batch, args.q.rows),
        .exponent_k = __ldg(&args.k.exponents[block_k]),
        .exponent_v = __ldg(&args.v.exponents[block_k]),
        .unit_v = UnitOfValues(args.v, key_tile.batch, key_tile.head)};
#pragma unroll 1
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
      KeyRows<kDepth> rows;
#pragma unroll
      for (int i = 0; i < kOutputs<kDepth>; ++i) rows.dk[i] = rows.dv[i] = 0.0f;
      rows.unit_k = rows.unit_v = 400;
#pragma unroll 1
      for (int member = 0; member < args.head_group; ++member) {
        const QueryTile tile = {key_tile.batch, key_tile.head * args.head_group + member, 0};
#pragma unroll 1
        for (int part = parts.begin; part < parts.end; ++part) {
          DifferentiateQueries<kDepth, kSides>(gradient, ring, cursor, tile, of_keys, part, half,
                                               thread, rows);
        }
      }
      const int64_t row = int64_t{key_tile.batch} * args.k.rows + of_keys.first;
      if (half + 1 == PackedTile<kDepth>::kHalves) ring.ReleaseResident();
      const auto store = [&](const auto& sums, int unit, float factor, float* to, int depth) {
        const int64_t pitch = int64_t{args.k.heads} * depth;
        const int column = half * kHalfDepth;
        StoreGradients(sums, {-unit, -unit}, factor,
                       to + row * pitch + int64_t{key_tile.head} * depth + column, pitch,
                       args.k.rows - of_keys.first, depth - column, thread);
      };
      store(rows.dk, rows.unit_k, gradient.scale, gradient.dk, args.k.depth);
      store(rows.dv, rows.unit_v, 1.0f, gradient.dv, args.v.depth);
    }
  }
}

template <int kDepth>
__device__ inline void CopyForKeys(const GradientArgs& gradient, const KeyRing<kDepth>& ring) {
  const AttentionArgs& args = gradient.forward;
  typename KeyRing<kDepth>::Cursor cursor;
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= gradient.key_order.Count()) return;
    const QueryTile tile = gradient.key_order.At(index);
    CopyResidents<kDepth, kPartRows>(ring, round & 1, tile, args.k, args.v);
    const KeyRange parts = PartsOfQueries(args, tile);
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
      for (int member = 0; member < args.head_group; ++member) {
        const int head = tile.head * args.head_group + member;
        for (int part = parts.begin; part < parts.end; ++part) {
          const int first = part * kPartRows;
          CopyStreamed<kDepth, kPartRows>(ring, cursor, {tile.batch, head, first / kBlockRows},
                                          half, first % kBlockRows, args.q, gradient.g);
        }
      }
    }
  }
}

// AttentionKeyGradient computes dK and dV, after AttentionQueryGradient.
template <int kDepth, bool kSides>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionKeyGradient(const __grid_constant__ GradientArgs args) {
  RunWarpgroups<KeyRing<kDepth>>(
      [&](const auto& ring) { CopyForKeys<kDepth>(args, ring); },
      [&](const auto& ring) { DifferentiateKeyTiles<kDepth, kSides>(args, ring); });
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ATTENTION_BACKWARD_CUH_
