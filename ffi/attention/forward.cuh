// The forward pass of float32 flash attention.
//
// Work split: a block takes one tile of 128 queries after the other. One thread copies; two
// warpgroups have 64 queries each. A tile of queries meets its blocks of 128 keys in order; hidden
// blocks are not copied.
//
// Each row's P is scaled by a power of two, so that its largest P so far lies in (2^13, 2^14], or
// is 1 if its score is huge. A row's reference, which its scores in base 2 are relative to, is an
// integer, so that rescaling is exact. The sums of P V start anew every 64 keys, because wgmma
// truncates. The float32 addition of these sums also rescales older ones. (H200, positive operands,
// 8192 keys, relative error in the Frobenius norm, anew every 128 keys: 5.1e-7.)
//
// Result valid in: args.out, args.row_sums.
#pragma once

#include "attention/ring.cuh"
#include "attention/scores.cuh"
#include "attention/split.cuh"

namespace jaxkernels {

inline constexpr int kStepsOfBlock = kBlockRows / 16;
inline constexpr int kPartSums = 32;  // of a thread, of 64 columns
// Outputs of a thread, in half of the depth.
template <int kDepth>
inline constexpr int kOutputs = PackedTile<kDepth>::kColumns / 2;

// OutputRows are a thread's two rows of the softmax and of its product with the values.
template <int kDepth>
struct OutputRows {
  float out[PackedTile<kDepth>::kHalves][kOutputs<kDepth>];  // times 2^exponent and the row's sum
  float sum[2];                                              // of the thread's columns
  float shift[2];  // minus the references; infinite while no key was seen
  int exponent;    // least exponent of the blocks of values so far
};

// MaximumOfQuad returns the maximum over the four lanes that share a row.
__device__ inline float MaximumOfQuad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float SumOfQuad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// ExpScores replaces scores by exp2(factor score + shift), and updates the rows' sums. `rescale`
// becomes the factors of older sums.
template <int kDepth>
__device__ inline void ExpScores(float (&scores)[kScores], float factor, OutputRows<kDepth>& rows,
                                 float (&rescale)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = -kInfinity<float>;
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      largest = fmaxf(largest, fmaxf(scores[4 * i + 2 * r], scores[4 * i + 2 * r + 1]));
    }
    largest = MaximumOfQuad(largest);
    const float old = rows.shift[r];
    const float top = ceilf(ScaledScore(largest, factor));
    const bool huge = IsHuge(top);  // 14 - top would be rounded
    rows.shift[r] = fminf(old, huge ? -top : 14.0f - top);
    const float shift = rows.shift[r] == kInfinity<float> ? 0.0f : rows.shift[r];
    const int exponent = static_cast<int>(fmaxf(shift - old, -127.0f));
    rescale[r] = PowerOfTwo(exponent);  // 2^-127 becomes 0
    const float own = ScaleHuge(scores, r, factor, huge);
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores[4 * i + 2 * r + j];
        score = FastExp2(fmaf(score, own, shift));
        sums[j] += score;
      }
    }
    rows.sum[r] = fmaf(rows.sum[r], rescale[r], sums[0] + sums[1]);
  }
}

// PairsOfA are 64 x 16 kSteps elements of a warpgroup as operands A: the sums of 16 columns become
// the operand of one step of k, in their order.
template <int kSteps>
struct PairsOfA {
  uint32_t high[kSteps][4], low[kSteps][4];

  __device__ explicit PairsOfA(const float* sums) {
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) {
      const HalfPairs pairs = SplitPair(sums[2 * i], sums[2 * i + 1]);
      high[i / 4][i % 4] = pairs.high, low[i / 4][i % 4] = pairs.low;
    }
  }
};

// StartWeightedSum starts sums = A B. `b` is the address of the first row of B in a tile of kRows
// rows. If high and low parts of B share lines, the sums of both are apart.
template <int kDepth, int kRows, int kSteps>
__device__ inline void StartWeightedSum(float (&sums)[kPartSums], const PairsOfA<kSteps>& a,
                                        uint32_t b) {
  using Tile = PackedTile<kDepth>;
  const uint64_t high = DescribeTile(b), low = DescribeTile(b + Tile::LowOffset(kRows));
  FenceProducts();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t at = i * kDescriptorStepMN;
    if constexpr (!Tile::kSharesLines) Multiply(sums, a.high[i], low + at, i > 0);
    Multiply(sums, a.low[i], high + at, !Tile::kSharesLines || i > 0);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    Multiply(sums, a.high[i], high + i * kDescriptorStepMN, true);
  }
  CommitProducts();
}

// PromoteSums computes out = sums factors + out rescale, with factors of a thread's two rows.
template <int kCount>
__device__ inline void PromoteSums(float (&out)[kCount], const float (&sums)[kPartSums],
                                   const float (&factors)[2], const float (&rescale)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2;
    float sum = sums[i];
    if constexpr (kCount < kPartSums) sum += sums[i + kCount];  // see StartWeightedSum
    out[i] = fmaf(sum, factors[r], out[i] * rescale[r]);
  }
}

// PowerOfNegative returns 2^exponent, or 0 below 2^-126.
// Requires: exponent <= 0.
__device__ inline float PowerOfNegative(int exponent) { return PowerOfTwo(max(exponent, -127)); }

template <int kDepth>
using ForwardRing = AttentionRing<kDepth, PackedTile<kDepth>::kHalves>;

// AttendBlock adds a block of keys to the rows. `last`: no other block follows.
template <int kDepth, bool kBiasMask>
__device__ inline void AttendBlock(const AttentionArgs& args, const ForwardRing<kDepth>& ring,
                                   typename ForwardRing<kDepth>::Cursor& cursor,
                                   const HeadTile& tile, int block, bool last, int keys,
                                   const ThreadOfTile& thread, int exponent_q,
                                   OutputRows<kDepth>& rows) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  const int key_head = tile.head / args.head_group;
  const int exponent_k = __ldg(&args.k.exponents[args.k.Block(tile.batch, key_head, block)]);
  const int exponent_v = __ldg(&args.v.exponents[args.v.Block(tile.batch, key_head, block)]);
  const uint32_t first_row = thread.row / 64 * 64 * kRowBytes;
  int slots[kHalves];
  float scores[kScores];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    slots[half] = ring.Take(cursor);
    StartScores<kDepth>(scores, ring.Resident(half) + first_row, ring.Slot(slots[half]), half > 0);
  }
  [[maybe_unused]] TileBiasMask<kHalves == 1 ? 2 : 1> bias_mask;
  if constexpr (kBiasMask) bias_mask.Load(args, tile, block, thread);
  WaitForProducts<0>();
  LaunderRegisters(scores);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) ring.Release(slots[half]);
  if (last) ring.ReleaseResident();
  float factor = FactorOfScores(args.scale, exponent_q + exponent_k);
  if constexpr (kBiasMask) factor = bias_mask.Apply(args, tile, block, thread, factor, scores);
  HideByBand(scores, args, tile, block, keys, thread);
  // P = exp2(score + shift).
  float rescale[2];
  ExpScores(scores, factor, rows, rescale);
  const PairsOfA<kStepsOfBlock / 2> probabilities[2] = {PairsOfA<kStepsOfBlock / 2>(&scores[0]),
                                                        PairsOfA<kStepsOfBlock / 2>(&scores[32])};
  const int exponent = min(rows.exponent, exponent_v);
  const float factor_v = PowerOfNegative(exponent - exponent_v);
  const float factor_out = PowerOfNegative(exponent - rows.exponent);
  rows.exponent = exponent;
  rescale[0] *= factor_out, rescale[1] *= factor_out;
  // The outputs += P V. The sums of 64 keys are promoted while those of the next 64, or of the
  // other half, are computed.
  float sums[2][kPartSums];
  const auto promote = [&](int i) {
    LaunderRegisters(sums[i % 2]);
    if (i % 2 == 0) {
      PromoteSums(rows.out[i / 2], sums[0], {factor_v, factor_v}, rescale);
    } else {
      ring.Release(slots[i / 2]);
      PromoteSums(rows.out[i / 2], sums[1], {factor_v, factor_v}, {1.0f, 1.0f});
    }
  };
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) {
    if (i % 2 == 0) slots[i / 2] = ring.Take(cursor);
    StartWeightedSum<kDepth, kBlockRows>(sums[i % 2], probabilities[i % 2],
                                         ring.Slot(slots[i / 2]) + i % 2 * 64 * kRowBytes);
    if (i == 0) continue;
    WaitForProducts<1>();
    promote(i - 1);
  }
  WaitForProducts<0>();
  promote(2 * kHalves - 1);
}

// StorePair stores those of two neighbouring elements that exist. `pairs`: both or none do, and
// they are aligned.
__device__ inline void StorePair(const float2& pair, float* to, int count, bool pairs) {
  if (pairs) {
    if (count > 0) *reinterpret_cast<float2*>(to) = pair;
  } else {
    if (count > 0) to[0] = pair.x;
    if (count > 1) to[1] = pair.y;
  }
}

// StoreRows divides the sums and stores them. Queries beyond the length see nothing.
template <int kDepth>
__device__ inline void StoreRows(const AttentionArgs& args, const HeadTile& tile,
                                 const ThreadOfTile& thread, const OutputRows<kDepth>& rows) {
  const float undo = PowerOfTwo(-rows.exponent);
  const int length = AttentionArgs::Length(args.q_lengths, tile.batch, args.q.rows);
  const int depth = args.v.depth;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = tile.index * kBlockRows + thread.row + 8 * r;
    const float sum = SumOfQuad(rows.sum[r]);
    if (query >= args.q.rows) continue;
    const bool sees = query < length && sum != 0.0f;
    const float inverse = 1.0f / sum;
    const int64_t row = int64_t{tile.batch} * args.q.rows + query;
    float* const to = args.out + (row * args.q.heads + tile.head) * depth;
#pragma unroll
    for (int half = 0; half < PackedTile<kDepth>::kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < kOutputs<kDepth> / 4; ++i) {
        const int column = half * kHalfDepth + 8 * i + thread.column;
        float2 pair;
        pair.x = sees ? rows.out[half][4 * i + 2 * r] * inverse * undo : 0.0f;
        pair.y = sees ? rows.out[half][4 * i + 2 * r + 1] * inverse * undo : 0.0f;
        StorePair(pair, to + column, depth - column, args.out_pairs);
      }
    }
    if (thread.column == 0) {
      const int64_t number = (int64_t{tile.batch} * args.q.heads + tile.head) * args.q.rows + query;
      args.row_sums[number] =
          sees ? make_float2(-rows.shift[r], sum) : make_float2(-kInfinity<float>, 0.0f);
    }
  }
}

template <int kDepth, bool kBiasMask>
__device__ inline void AttendTiles(const AttentionArgs& args, const ForwardRing<kDepth>& ring) {
  const ThreadOfTile thread;
  typename ForwardRing<kDepth>::Cursor cursor;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= args.order.Count()) return;
    const HeadTile tile = args.order.At(index);
    ring.WaitForResident(round & 1);
    const KeyRange blocks = args.BlocksOf(tile);
    const int keys = AttentionArgs::Length(args.k_lengths, tile.batch, args.k.rows);
    const int exponent_q =
        __ldg(&args.q.exponents[args.q.Block(tile.batch, tile.head, tile.index)]);
    OutputRows<kDepth> rows;
#pragma unroll
    for (auto& out : rows.out) {
#pragma unroll
      for (float& x : out) x = 0.0f;
    }
    rows.sum[0] = rows.sum[1] = 0.0f;
    rows.shift[0] = rows.shift[1] = kInfinity<float>;
    rows.exponent = 126;  // the largest exponent
    if (blocks.begin == blocks.end) ring.ReleaseResident();
#pragma unroll 1
    for (int block = blocks.begin; block < blocks.end; ++block) {
      AttendBlock<kDepth, kBiasMask>(args, ring, cursor, tile, block, block + 1 == blocks.end, keys,
                                     thread, exponent_q, rows);
    }
    StoreRows(args, tile, thread, rows);
  }
}

template <int kDepth>
__device__ inline void CopyTiles(const AttentionArgs& args, const ForwardRing<kDepth>& ring) {
  constexpr int kHalves = PackedTile<kDepth>::kHalves;
  typename ForwardRing<kDepth>::Cursor cursor;
  for (int round = 0;; ++round) {
    const int index = TileOrder::IndexOf(round, blockIdx.x, gridDim.x);
    if (index >= args.order.Count()) return;
    const HeadTile tile = args.order.At(index);
    const char* queries[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      queries[half] = args.q.Tile<kDepth>(tile.batch, tile.head, tile.index, half);
    }
    ring.CopyResident(round & 1, queries);
    const KeyRange blocks = args.BlocksOf(tile);
    const int key_head = tile.head / args.head_group;
    for (int block = blocks.begin; block < blocks.end; ++block) {
      for (int half = 0; half < kHalves; ++half) {
        ring.CopyTile(cursor, args.k.Tile<kDepth>(tile.batch, key_head, block, half));
      }
      for (int half = 0; half < kHalves; ++half) {
        ring.CopyTile(cursor, args.v.Tile<kDepth>(tile.batch, key_head, block, half));
      }
    }
  }
}

template <int kDepth, bool kBiasMask>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    AttentionForward(const __grid_constant__ AttentionArgs args) {
  RunWarpgroups<ForwardRing<kDepth>>(
      [&](const auto& ring) { CopyTiles<kDepth>(args, ring); },
      [&](const auto& ring) { AttendTiles<kDepth, kBiasMask>(args, ring); });
}

}  // namespace jaxkernels
