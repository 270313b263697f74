// Sums within a thread; all-reductions within a lane group and within a block.
//
// Owns: the order in which partial results are combined, and the rounding errors of sums. Must not
// know: what is reduced.
// cub::BlockReduce is not used: it needs the block size as a template parameter (four times the
// kernels) and leaves the result in one thread, so that every all-reduction would cost a second
// barrier.
#pragma once

#include "core/numeric.cuh"

namespace jaxkernels {

inline constexpr int kWarpSize = 32;
inline constexpr int kMaxWarpsPerBlock = 32;

// Tree sum in place: adds elements [kWidth, 2 * kWidth) to the first kWidth, then halves kWidth,
// and so on. Element 0 becomes the sum.
template <int kWidth, typename C, int kSize>
__device__ void AddHalves(C (&sum)[kSize]) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if (j + kWidth < kSize) sum[j] = RoundedSum(sum[j], sum[j + kWidth]);
  }
  if constexpr (kWidth > 1) AddHalves<kWidth / 2>(sum);
}

// Pairwise sum, as if padded with zeros to a power of two.
template <typename C, int kSize>
__device__ C SumPairwise(const C (&term)[kSize]) {
  static_assert(kSize <= 16);
  C sum[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) sum[j] = term[j];
  AddHalves<8>(sum);
  return sum[0];
}

// A reduction is a type with `Value`, `Combine(a, b)` and `Identity()`.
template <typename C>
struct MaxReduction {
  using Value = C;
  __device__ static C Combine(C a, C b) { return Max(a, b); }
  __device__ static C Identity() { return -kInfinity<C>; }
};

template <typename C>
struct SumReduction {
  using Value = C;
  __device__ static C Combine(C a, C b) { return RoundedSum(a, b); }
  __device__ static C Identity() { return C(0); }
};

// A compensated sum: the sum and its rounding error. (Float64 would take fewer instructions, but
// its conversions are slow: on an H200 they cost 0.25 us for one row of 36920 float32 columns.)
struct SumWithRest {
  float sum = 0, rest = 0;

  SumWithRest() = default;
  __device__ SumWithRest(float sum, float rest = 0) : sum(sum), rest(rest) {}

  __device__ SumWithRest operator*(float factor) const {
    const float product = RoundedProduct(sum, factor);
    return {product, fmaf(rest, factor, fmaf(sum, factor, -product))};
  }
};

// Adds by Knuth's TwoSum, which is commutative bit for bit. If the sum is infinite, the rest is
// NaN.
template <>
struct SumReduction<SumWithRest> {
  using Value = SumWithRest;
  __device__ static Value Combine(Value a, Value b) {
    const float sum = RoundedSum(a.sum, b.sum);
    const float of_b = RoundedSum(sum, -a.sum);
    const float lost =
        RoundedSum(RoundedSum(a.sum, -RoundedSum(sum, -of_b)), RoundedSum(b.sum, -of_b));
    return {sum, RoundedSum(RoundedSum(a.rest, b.rest), lost)};
  }
  __device__ static Value Identity() { return {}; }
};

__device__ inline float ShuffleXor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ inline double ShuffleXor(double value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ inline SumWithRest ShuffleXor(SumWithRest value, int mask) {
  return {ShuffleXor(value.sum, mask), ShuffleXor(value.rest, mask)};
}

// Butterfly over kLanes neighbouring lanes; the results are valid in all of them.
// Requires: all 32 lanes of the warp take part, including groups without work.
template <typename Reduction, int kLanes, int kCount>
__device__ void GroupAllReduce(typename Reduction::Value (&value)[kCount]) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
#pragma unroll
    for (auto& one : value) one = Reduction::Combine(one, ShuffleXor(one, mask));
  }
}

// All-reduction of one value over a group of threads.
template <typename Reduction, typename Group>
__device__ typename Reduction::Value AllReduce(Group& group, typename Reduction::Value value) {
  typename Reduction::Value one[] = {value};
  group.template AllReduce<Reduction>(one);
  return one[0];
}

// All-reductions over a block with one barrier each: every warp reduces the warps' partial results
// for itself. Two scratch lines alternate: a warp that is already in the next reduction writes the
// other line, and returns to this line only after a barrier that all its readers have passed. One
// call reduces up to kMost values.
// Requires: all threads of the block take part, and blockDim.x is a multiple of 32.
template <typename Value, int kMost>
class BlockReducer {
 public:
  static constexpr bool kMeetsInTwoSteps = true;  // first the lanes of a warp, then the warps

  struct Scratch {
    Value line[2][kMost][kMaxWarpsPerBlock];
  };

  __device__ explicit BlockReducer(Scratch& scratch) : scratch_(scratch) {}

  template <typename Reduction, int kCount>
  __device__ void AllReduce(Value (&value)[kCount]) {
    Value result[kCount];
    AllReduce<Reduction, Reduction>(value, result);
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = result[i];
  }

  // As above, with one reduction across lanes and another across warps.
  template <typename OfLanes, typename OfWarps, int kCount>
  __device__ void AllReduce(const Value (&value)[kCount],
                            typename OfWarps::Value (&result)[kCount]) {
    Value one_class[1][kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) one_class[0][i] = value[i];
    ReduceClasses<OfLanes, OfWarps>(one_class, result, true);
  }

  // As above with kClasses accumulators per thread (1 or 2). The second accumulator of warp w
  // counts as warp w + warps, so that the bits equal those of twice the threads. Blocks too large
  // for that combine the two accumulators of a warp first. Overwrites `value`. Only warps with
  // `wants` compute the result; the others do not wait for it. Returns `wants`.
  template <typename OfLanes, typename OfWarps, int kClasses, int kCount>
  __device__ bool ReduceClasses(Value (&value)[kClasses][kCount],
                                typename OfWarps::Value (&result)[kCount], bool wants) {
    static_assert(kClasses <= 2 && kCount <= kMost);
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int warps = blockDim.x / kWarpSize;
    const bool apart = kClasses == 2 && 2 * warps <= kMaxWarpsPerBlock;
    auto* line = scratch_.line[turn_];
    turn_ ^= 1;
#pragma unroll
    for (auto& of_class : value) GroupAllReduce<OfLanes, kWarpSize>(of_class);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Value second = value[kClasses - 1][i];
      if (kClasses == 2 && !apart) value[0][i] = OfLanes::Combine(value[0][i], second);
      if (lane == 0) line[i][warp] = value[0][i];
      if (lane == 0 && apart) line[i][warp + warps] = second;
    }
    __syncthreads();
    if (!wants) return false;
    const int entries = apart ? 2 * warps : warps;
    if (entries > 8) {
      Meet<OfWarps, kMaxWarpsPerBlock>(line, entries, result);
    } else if (entries > 4) {
      Meet<OfWarps, 8>(line, entries, result);
    } else {
      Meet<OfWarps, 4>(line, entries, result);
    }
    return true;
  }

 private:
  // Reduces up to kWidth entries of each line.
  template <typename Reduction, int kWidth, int kCount>
  __device__ static void Meet(const Value (*line)[kMaxWarpsPerBlock], int entries,
                              typename Reduction::Value (&result)[kCount]) {
    const int entry = threadIdx.x % kWidth;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      result[i] = Reduction::Identity();
      if (entry < entries) result[i] = line[i][entry];
    }
    GroupAllReduce<Reduction, kWidth>(result);
  }

  Scratch& scratch_;
  int turn_ = 0;
};

}  // namespace jaxkernels
