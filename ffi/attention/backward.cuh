// The backward pass of attention on tensor cores, for depths up to 64: a pass over dO, a kernel of
// dQ, then one of dK and dV. Both recompute the scores; P and dS never leave registers.
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
  float shift;  // reference of the block - e - r
  float delta;
  float r;
  int e;
};

struct GradientArgs {
  AttentionArgs forward;  // without results
  SplitOperand g;         // dO; its exponents are those of blocks: the least e
  const float* out;       // O
  RowFacts* facts;        // 128 of each block of queries of each head
  float scale;            // of the scores
  float* dq;
  float* dk;
  float* dv;
  TileOrder key_order;  // of tiles of keys, heads of keys
  int* key_counter;

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
__global__ void __launch_bounds__(kSplitAttentionThreads)
    SplitGradient(const __grid_constant__ GradientArgs args) {
  constexpr int kChunks = kHalfDepth / kSplitElements;  // lanes of a row
  constexpr int kRowsAtOnce = kSplitAttentionThreads / kChunks, kCount = kBlockRows / kRowsAtOnce;
  const SplitOperand& g = args.g;
  const int64_t block = blockIdx.x;
  const int first = static_cast<int>(block % g.blocks) * kBlockRows;
  const int64_t all_head = block / g.blocks;
  const int batch = static_cast<int>(all_head / g.heads),
            head = static_cast<int>(all_head % g.heads);
  const int chunk = threadIdx.x % kChunks, column = chunk * kSplitElements;
  const int unit = UnitOfValues(args.forward.v, batch, head / args.forward.head_group);
  char* const tile = g.packed + block * kPairTileBytes;
  int exponents[kCount];
  int least = 1 << 20;
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.forward.counter = *args.key_counter = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    const int row = first + local;
    const int64_t at = ((int64_t{batch} * g.rows + row) * g.heads + head) * g.depth + column;
    float v[kSplitElements], out[kSplitElements];
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kSplitElements; ++j) {
      const bool valid = row < g.rows && column + j < g.depth;
      v[j] = valid ? __ldg(g.data + at + j) : 0.0f;
      out[j] = valid ? __ldg(args.out + at + j) : 0.0f;
      largest = max(largest, FiniteBits(v[j]));
    }
#pragma unroll
    for (int lane = 1; lane < kChunks; lane *= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, lane));
    }
    const float2 sums = row < g.rows ? __ldg(&args.forward.row_sums[all_head * g.rows + row])
                                     : make_float2(0.0f, 0.0f);
    const bool sees = sums.y != 0.0f;
    const int exponent = ExponentOf(largest);
    const uint32_t bits = __float_as_uint(sums.y);  // s = 2^power mantissa
    const int power = sees ? static_cast<int>(bits >> 23) - 127 : 0;
    const float mantissa = sees ? __uint_as_float((bits & 0x7fffff) | 0x3f800000) : 1.0f;
    const float scale = sees ? PowerOfTwo(exponent) : 0.0f;
    float delta = 0.0f;
    uint4 high, low;
    uint32_t* const high_words = &high.x;
    uint32_t* const low_words = &low.x;
#pragma unroll
    for (int j = 0; j < kSplitElements; ++j) {
      v[j] = v[j] * scale / mantissa;
      delta = fmaf(v[j], out[j] * PowerOfTwo(unit), delta);
    }
#pragma unroll
    for (int j = 0; j < kSplitElements; j += 2) {
      const HalfPairs pairs = SplitPair(v[j], v[j + 1]);
      high_words[j / 2] = pairs.high, low_words[j / 2] = pairs.low;
    }
    char* const place = tile + PlaceOfChunk(local, chunk);
    *reinterpret_cast<uint4*>(place) = high;
    *reinterpret_cast<uint4*>(place + kPairPartBytes) = low;
#pragma unroll
    for (int lane = 1; lane < kChunks; lane *= 2) delta += __shfl_xor_sync(~0u, delta, lane);
    exponents[i] = exponent + power;
    if (sees) least = min(least, exponents[i]);
    if (chunk == 0) {
      args.facts[block * kBlockRows + local] = {-kInfinity<float>, sees ? delta : 0.0f,
                                                sees ? sums.x : kInfinity<float>, exponents[i]};
    }
  }
  // LargestOfBlock takes positive numbers.
  const int reference =
      (1 << 20) - static_cast<int>(LargestOfBlock(static_cast<uint32_t>((1 << 20) - least)));
  if (threadIdx.x == 0) g.exponents[block] = reference;
  if (chunk != 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int local = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    RowFacts& facts = args.facts[block * kBlockRows + local];
    // -inf for rows that see nothing
    facts.shift = static_cast<float>(reference - exponents[i]) - facts.r;
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
    exponents[r] = max(ExponentOf(FiniteBits(MaximumOfQuad(largest))), -113);
    const float scale = PowerOfTwo(exponents[r]);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      sums[4 * i + 2 * r] *= scale, sums[4 * i + 2 * r + 1] *= scale;
    }
  }
}

// QueryRows are a thread's two rows of the kernel of dQ.
struct QueryRows {
  float dq[kOutputs];        // times 2^(e + u + unit)
  float weighted[kOutputs];  // sums of P K, times 2^unit
  float r[2], delta[2];
  float slack[2], mass[2];  // sums of dS and of P, of the thread's columns
  int unit;                 // least exponent of the blocks of keys so far
};

// DifferentiateBlock adds a block of keys to dQ.
template <bool kSides>
__device__ inline void DifferentiateBlock(const GradientArgs& gradient,
                                          const AttentionRing<2>& ring,
                                          AttentionRing<2>::Cursor& cursor, const QueryTile& tile,
                                          int block, bool last, int keys, int unit_v,
                                          const ThreadOfTile& thread, int exponent_q,
                                          QueryRows& rows) {
  const AttentionArgs& args = gradient.forward;
  const int key_head = tile.head / args.head_group;
  const int exponent_k = __ldg(&args.k.exponents[args.k.Block(tile.batch, key_head, block)]);
  const int exponent_v = __ldg(&args.v.exponents[args.v.Block(tile.batch, key_head, block)]);
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  float p[kScores], ds[kScores];
  const int slot_k = cursor.slot;
  ring.WaitFull(cursor);
  StartScores(p, ring.Resident(0) + first_row, ring.Slot(slot_k), false);
  cursor.Advance();
  const int slot_v = cursor.slot;
  ring.WaitFull(cursor);
  StartScores(ds, ring.Resident(1) + first_row, ring.Slot(slot_v), false);
  cursor.Advance();
  WaitForProducts<1>();
  LaunderRegisters(p);
  float factor = FactorOfScores(args.scale, exponent_q + exponent_k);
  if constexpr (kSides) {
    if (args.bias.data != nullptr) {
      AddBias(args, tile, block, thread, factor, p);
      factor = 1.0f;
    }
    if (args.mask.data != nullptr) {
      const uint32_t bits[2] = {LoadMask(args, tile, block, thread, 0),
                                LoadMask(args, tile, block, thread, 1)};
      HideByMask(p, bits);
    }
  }
  HideByBand(p, args, tile, block, keys, thread);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int r = i / 2 % 2;
    p[i] = FastExp2(fmaf(p[i], factor, -rows.r[r]));
    rows.mass[r] += p[i];
  }
  WaitForProducts<0>();
  LaunderRegisters(ds);
  ring.Release(slot_v);
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
  float sums[kOutputs];
  const uint64_t tile_k = DescribeTile(ring.Slot(slot_k));
  FenceProducts();
#pragma unroll
  for (int i = 0; i < kStepsOfBlock; ++i) {
    Multiply64x64(sums, high[i], tile_k + i * kDescriptorStepMN, i > 0);
  }
  CommitProducts();
  int exponents[2];
  ScaleRows(ds, exponents);
  const PairsOfA<kStepsOfBlock> pairs(ds);
  const int unit = min(rows.unit, exponent_k);
  const float factor_k = PowerOfNegative(unit - exponent_k);
  const float old = PowerOfNegative(unit - rows.unit);
  const float rescale[2] = {old, old};
  rows.unit = unit;
  WaitForProducts<0>();
  LaunderRegisters(sums);
  PromoteSums(rows.weighted, sums, factor_k, rescale);
  StartWeightedSum(sums, pairs, ring.Slot(slot_k));
  WaitForProducts<0>();
  LaunderRegisters(sums);
  ring.Release(slot_k);
  const float factors[2] = {factor_k * PowerOfTwo(-exponents[0]),
                            factor_k * PowerOfTwo(-exponents[1])};
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    rows.dq[i] = fmaf(sums[i], factors[i / 2 % 2], rows.dq[i] * old);
  }
}

// StoreGradients stores two rows of a warp's 16 x 64 sums times 2^exponents, at `to` + row * pitch.
__device__ inline void StoreGradients(const float (&sums)[kOutputs], const int (&exponents)[2],
                                      float factor, float* to, int64_t pitch, int rows, int depth,
                                      const ThreadOfTile& thread) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = thread.row + 8 * r;
    if (row >= rows) continue;
#pragma unroll
    for (int i = 0; i < kOutputs / 2; ++i) {
      const int column = i / 2 * 8 + i % 2 + thread.column;
      if (column < depth) {
        to[row * pitch + column] =
            ScaleByPower(sums[i / 2 * 4 + 2 * r + i % 2], exponents[r]) * factor;
      }
    }
  }
}

template <bool kSides>
__device__ inline void DifferentiateTiles(const GradientArgs& gradient,
                                          const AttentionRing<2>& ring) {
  const AttentionArgs& args = gradient.forward;
  const ThreadOfTile thread;
  AttentionRing<2>::Cursor cursor;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    const int index = ring.WaitForResident(round & 1);
    if (index < 0) return;
    const QueryTile tile = args.order.At(index);
    const KeyRange blocks = args.BlocksOf(tile);
    const int keys = AttentionArgs::Length(args.k_lengths, tile.batch, args.k.rows);
    const int exponent_q = __ldg(&args.q.exponents[args.q.Block(tile.batch, tile.head, tile.tile)]);
    const int unit_v = UnitOfValues(args.v, tile.batch, tile.head / args.head_group);
    RowFacts* const facts = gradient.FactsOf(tile, tile.tile) + thread.row;
    QueryRows rows;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) rows.dq[i] = rows.weighted[i] = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.r[r] = facts[8 * r].r, rows.delta[r] = facts[8 * r].delta;
      rows.slack[r] = rows.mass[r] = 0.0f;
    }
    rows.unit = 126;
    if (blocks.begin == blocks.end) ring.ReleaseResident();
#pragma unroll 1
    for (int block = blocks.begin; block < blocks.end; ++block) {
      DifferentiateBlock<kSides>(gradient, ring, cursor, tile, block, block + 1 == blocks.end, keys,
                                 unit_v, thread, exponent_q, rows);
    }
    int exponents[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float mass = SumOfQuad(rows.mass[r]), slack = SumOfQuad(rows.slack[r]);
      const float correction = mass == 0.0f ? 0.0f : slack / mass;
#pragma unroll
      for (int i = 0; i < kOutputs / 2; ++i) {
        const int element = i / 2 * 4 + 2 * r + i % 2;
        rows.dq[element] = fmaf(-correction, rows.weighted[element], rows.dq[element]);
      }
      if (thread.column == 0) facts[8 * r].delta = rows.delta[r] + correction;
      exponents[r] = -(facts[8 * r].e + unit_v + rows.unit);
    }
    const int first = tile.tile * kBlockRows;
    const int64_t pitch = int64_t{args.q.heads} * args.q.depth;
    float* const to = gradient.dq + (int64_t{tile.batch} * args.q.rows + first) * pitch +
                      int64_t{tile.head} * args.q.depth;
    StoreGradients(rows.dq, exponents, gradient.scale, to, pitch, args.q.rows - first, args.q.depth,
                   thread);
  }
}

__device__ inline void CopyForQueries(const GradientArgs& gradient, const AttentionRing<2>& ring) {
  const AttentionArgs& args = gradient.forward;
  AttentionRing<2>::Cursor cursor;
  int index = atomicAdd(args.counter, 1);
  uint32_t round = 0;
  for (; index < args.order.Count(); ++round) {
    const QueryTile tile = args.order.At(index);
    ring.CopyResident(round & 1, index,
                      {args.q.Tile<1>(tile.batch, tile.head, tile.tile, 0),
                       gradient.g.Tile<1>(tile.batch, tile.head, tile.tile, 0)});
    index = atomicAdd(args.counter, 1);
    const KeyRange blocks = args.BlocksOf(tile);
    const int key_head = tile.head / args.head_group;
    for (int block = blocks.begin; block < blocks.end; ++block) {
      ring.CopyTile(cursor, args.k.Tile<1>(tile.batch, key_head, block, 0));
      ring.CopyTile(cursor, args.v.Tile<1>(tile.batch, key_head, block, 0));
    }
  }
  ring.Finish(round & 1);
}

// AttentionQueryGradient computes dQ, and corrects delta.
template <bool kSides>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionQueryGradient(const __grid_constant__ GradientArgs args) {
#if JK_HAS_WGMMA
  extern __shared__ char smem[];
  __shared__ AttentionBarriers barriers;
  const AttentionRing<2> ring(barriers, (SharedAddress(smem) + 1023) & ~1023u);
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  if (threadIdx.x < 128) {
    GiveRegisters<kCopyingRegisters>();
    if (threadIdx.x == 0) CopyForQueries(args, ring);
  } else {
    TakeRegisters<kAttendingRegisters>();
    DifferentiateTiles<kSides>(args, ring);
  }
#endif
}

// The kernel of dK and dV: a block has tiles of 128 keys and values, a warpgroup 64 of them. Scores
// are transposed, so that P and dS are operands A: a thread has two keys, and 32 of 64 queries at a
// time.
inline constexpr int kColumnSums = 32;

struct KeyRows {
  float dk[kOutputs];  // times 2^unit_k
  float dv[kOutputs];  // times 2^unit_v
  int unit_k, unit_v;
};

// AddRows adds sums 2^-(exponents of rows + exponent) to out 2^-unit. The unit becomes the least so
// far.
__device__ inline void AddRows(float (&out)[kOutputs], int& unit, const float (&sums)[kOutputs],
                               const int (&exponents)[2], int exponent) {
  // All threads of a row need one unit, and a thread has two rows; those of a quad are equal.
  const int least = min(unit, min(exponents[0], exponents[1]) + exponent);
  const float old = PowerOfNegative(least - unit);
  const float factors[2] = {PowerOfNegative(least - exponents[0] - exponent),
                            PowerOfNegative(least - exponents[1] - exponent)};
  unit = least;
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) out[i] = fmaf(sums[i], factors[i / 2 % 2], out[i] * old);
}

// FinishTransposed adds the bias to scores, and hides some; rows are keys, columns queries from
// `query` on. With a bias `factor` becomes 1.
template <bool kSides>
__device__ inline void FinishTransposed(float (&scores)[kColumnSums], const AttentionArgs& args,
                                        const QueryTile& tile, int key, int query, int keys,
                                        float& factor, const ThreadOfTile& thread) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int j = key + 8 * r;
    if constexpr (kSides) {
      const int column = min(j, args.k.rows - 1);
#pragma unroll
      for (int i = 0; i < kColumnSums / 2; ++i) {
        float& score = scores[i / 2 * 4 + 2 * r + i % 2];
        const int row = min(query + i / 2 * 8 + i % 2, args.q.rows - 1);
        if (args.bias.data != nullptr) {
          const float bias = __ldg(args.bias.Row(tile, row) + column * args.bias.column);
          score = fmaf(score, factor, bias * kLog2E);
        }
        if (args.mask.data != nullptr &&
            __ldg(args.mask.Row(tile, row) + column * args.mask.column) == 0) {
          score = -kInfinity<float>;
        }
      }
    }
    const KeyRange all = QueriesOfKey(args.band, j, keys, args.q.rows);
    const KeyRange range = {all.begin - query, all.end - query};
    if (range.begin <= 0 && range.end >= 64) continue;
#pragma unroll
    for (int i = 0; i < kColumnSums / 2; ++i) {
      const int element = i / 2 * 4 + 2 * r + i % 2;
      if (!IsVisible(range, ColumnOf(element))) scores[element] = -kInfinity<float>;
    }
  }
  if constexpr (kSides) {
    if (args.bias.data != nullptr) factor = 1.0f;
  }
}

// DifferentiateQueries adds 64 queries to dK and dV. `q` and `g` are the addresses of their rows in
// packed tiles.
template <bool kSides>
__device__ inline void DifferentiateQueries(const GradientArgs& gradient,
                                            const AttentionRing<2>& ring, uint32_t q, uint32_t g,
                                            const QueryTile& tile, int key_tile, int block,
                                            int part, int keys, int exponent_q, int exponent_k,
                                            int exponent_v, int unit_v, const ThreadOfTile& thread,
                                            KeyRows& rows) {
  const AttentionArgs& args = gradient.forward;
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  float p[kColumnSums], ds[kColumnSums];
  StartScores(p, ring.Resident(0) + first_row, q, false);
  StartScores(ds, ring.Resident(1) + first_row, g, false);
  const RowFacts* const facts = gradient.FactsOf(tile, block) + part * 64 + thread.column;
  const int reference =
      __ldg(&gradient.g.exponents[gradient.g.Block(tile.batch, tile.head, block)]);
  WaitForProducts<1>();
  LaunderRegisters(p);
  float factor = FactorOfScores(args.scale, exponent_q + exponent_k);
  const int key = key_tile * kBlockRows + thread.row;
  const int query = block * kBlockRows + part * 64 + thread.column;
  FinishTransposed<kSides>(p, args, tile, key, query, keys, factor, thread);
  // The largest P of a key's row decides its scale.
  float largest[2] = {-kInfinity<float>, -kInfinity<float>};
#pragma unroll
  for (int i = 0; i < kColumnSums / 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float shift = __ldg(&facts[8 * i + j].shift);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& score = p[4 * i + 2 * r + j];
        score = fmaf(score, factor, shift);
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
  const float factor_v = PowerOfNegative(unit_v - exponent_v);
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
  float sums[kOutputs];
  const PairsOfA<4> pairs_p(p);
  StartWeightedSum(sums, pairs_p, g);
  int more[2];
  ScaleRows(ds, more);
  const PairsOfA<4> pairs_ds(ds);
  WaitForProducts<0>();
  LaunderRegisters(sums);
  AddRows(rows.dv, rows.unit_v, sums, exponents, reference);
  StartWeightedSum(sums, pairs_ds, q);
  more[0] += exponents[0], more[1] += exponents[1];
  WaitForProducts<0>();
  LaunderRegisters(sums);
  AddRows(rows.dk, rows.unit_k, sums, more, reference + unit_v + exponent_q);
}

// BlocksOfQueries returns the blocks of queries that see any key of a tile of keys.
__device__ inline KeyRange BlocksOfQueries(const AttentionArgs& args, const QueryTile& tile) {
  const int keys = AttentionArgs::Length(args.k_lengths, tile.batch, args.k.rows);
  const int queries = AttentionArgs::Length(args.q_lengths, tile.batch, args.q.rows);
  const KeyRange range = QueriesOfTile(args.band, tile.tile * kBlockRows, keys, queries);
  if (range.begin == range.end) return {0, 0};
  return {range.begin / kBlockRows, (range.end - 1) / kBlockRows + 1};
}

template <bool kSides>
__device__ inline void DifferentiateKeyTiles(const GradientArgs& gradient,
                                             const AttentionRing<2>& ring) {
  const AttentionArgs& args = gradient.forward;
  const ThreadOfTile thread;
  AttentionRing<2>::Cursor cursor;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    const int index = ring.WaitForResident(round & 1);
    if (index < 0) return;
    const QueryTile key_tile = gradient.key_order.At(index);  // its head is one of keys
    const KeyRange blocks = BlocksOfQueries(args, key_tile);
    const int keys = AttentionArgs::Length(args.k_lengths, key_tile.batch, args.k.rows);
    const int64_t block_k = args.k.Block(key_tile.batch, key_tile.head, key_tile.tile);
    const int exponent_k = __ldg(&args.k.exponents[block_k]);
    const int exponent_v = __ldg(&args.v.exponents[block_k]);
    const int unit_v = UnitOfValues(args.v, key_tile.batch, key_tile.head);
    KeyRows rows;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) rows.dk[i] = rows.dv[i] = 0.0f;
    rows.unit_k = rows.unit_v = 400;
#pragma unroll 1
    for (int member = 0; member < args.head_group; ++member) {
      const QueryTile tile = {key_tile.batch, key_tile.head * args.head_group + member, 0};
#pragma unroll 1
      for (int block = blocks.begin; block < blocks.end; ++block) {
        const int exponent_q = __ldg(&args.q.exponents[args.q.Block(tile.batch, tile.head, block)]);
        const int slot_q = cursor.slot;
        ring.WaitFull(cursor);
        cursor.Advance();
        const int slot_g = cursor.slot;
        ring.WaitFull(cursor);
        cursor.Advance();
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
          const uint32_t rows_of_part = part * 64 * kRowBytes;
          DifferentiateQueries<kSides>(gradient, ring, ring.Slot(slot_q) + rows_of_part,
                                       ring.Slot(slot_g) + rows_of_part, tile, key_tile.tile, block,
                                       part, keys, exponent_q, exponent_k, exponent_v, unit_v,
                                       thread, rows);
        }
        ring.Release(slot_q);
        ring.Release(slot_g);
      }
    }
    ring.ReleaseResident();
    const int first = key_tile.tile * kBlockRows;
    const int64_t row = int64_t{key_tile.batch} * args.k.rows + first;
    const auto store = [&](const float (&sums)[kOutputs], int unit, float factor, float* to,
                           int depth) {
      const int64_t pitch = int64_t{args.k.heads} * depth;
      StoreGradients(sums, {-unit, -unit}, factor,
                     to + row * pitch + int64_t{key_tile.head} * depth, pitch, args.k.rows - first,
                     depth, thread);
    };
    store(rows.dk, rows.unit_k, gradient.scale, gradient.dk, args.k.depth);
    store(rows.dv, rows.unit_v, 1.0f, gradient.dv, args.v.depth);
  }
}

__device__ inline void CopyForKeys(const GradientArgs& gradient, const AttentionRing<2>& ring) {
  const AttentionArgs& args = gradient.forward;
  AttentionRing<2>::Cursor cursor;
  int index = atomicAdd(gradient.key_counter, 1);
  uint32_t round = 0;
  for (; index < gradient.key_order.Count(); ++round) {
    const QueryTile tile = gradient.key_order.At(index);
    ring.CopyResident(round & 1, index,
                      {args.k.Tile<1>(tile.batch, tile.head, tile.tile, 0),
                       args.v.Tile<1>(tile.batch, tile.head, tile.tile, 0)});
    index = atomicAdd(gradient.key_counter, 1);
    const KeyRange blocks = BlocksOfQueries(args, tile);
    for (int member = 0; member < args.head_group; ++member) {
      const int head = tile.head * args.head_group + member;
      for (int block = blocks.begin; block < blocks.end; ++block) {
        ring.CopyTile(cursor, args.q.Tile<1>(tile.batch, head, block, 0));
        ring.CopyTile(cursor, gradient.g.Tile<1>(tile.batch, head, block, 0));
      }
    }
  }
  ring.Finish(round & 1);
}

// AttentionKeyGradient computes dK and dV, after AttentionQueryGradient.
template <bool kSides>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionKeyGradient(const __grid_constant__ GradientArgs args) {
#if JK_HAS_WGMMA
  extern __shared__ char smem[];
  __shared__ AttentionBarriers barriers;
  const AttentionRing<2> ring(barriers, (SharedAddress(smem) + 1023) & ~1023u);
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  if (threadIdx.x < 128) {
    GiveRegisters<kCopyingRegisters>();
    if (threadIdx.x == 0) CopyForKeys(args, ring);
  } else {
    TakeRegisters<kAttendingRegisters>();
    DifferentiateKeyTiles<kSides>(args, ring);
  }
#endif
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ATTENTION_BACKWARD_CUH_
