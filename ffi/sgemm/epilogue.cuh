// The epilogue of every rung and of split-k: out = alpha * sum + beta * C.
//
// Owns: the linear combination, and predicated stores of sums held in registers. Must not know: how
// the sums are computed.
#pragma once

#include <cstdint>

namespace jaxkernels {

// LinearCombination rounds beta * c but not alpha * sum, as CUTLASS does. With beta = 1 the result
// is rounded once; this covers C += alpha A B, and the parts of k that several launches add to C.
// Arguments are passed by reference: by value, the compiler tests `aligned` again for every row of
// a thread tile.
__device__ inline float LinearCombination(const float& alpha, const float& sum, const float& beta,
                                          const float& c) {
  return fmaf(alpha, sum, beta * c);
}

// LinearCombinationAt loads c from memory. If beta is 0 it does not, so that a NaN there does no
// harm.
__device__ inline float LinearCombinationAt(float alpha, float sum, float beta, const float* c) {
  return LinearCombination(alpha, sum, beta, beta == 0.0f ? 0.0f : *c);
}

struct EpilogueParams {
  float alpha, beta;
  const float* c;  // c and out: the thread's first element; c is read only if beta != 0
  float* out;
  int64_t pitch;          // elements from one row to the next
  int64_t rows, columns;  // in range, counted from the first element
};

// StoreQuad writes four aligned neighbouring columns. Sums always go through LinearCombination: to
// store a sum directly, the compiler would keep it in the registers that a 16-byte store needs,
// which conflict with the register banks of the fragments.
template <bool kReadC>
__device__ inline void StoreQuad(const EpilogueParams& to, int64_t offset, const float* sums) {
  float4 old = {};
  if constexpr (kReadC) old = *reinterpret_cast<const float4*>(to.c + offset);
  *reinterpret_cast<float4*>(to.out + offset) = {
      LinearCombination(to.alpha, sums[0], to.beta, old.x),
      LinearCombination(to.alpha, sums[1], to.beta, old.y),
      LinearCombination(to.alpha, sums[2], to.beta, old.z),
      LinearCombination(to.alpha, sums[3], to.beta, old.w)};
}

// Element (i, j) of a thread lies Map::RowOf(i) rows and Map::ColumnOf(j) columns after its first
// one. Columns come in quads of neighbours.
template <class Map, bool kReadC, int kM, int kN>
__device__ void StoreElements(const EpilogueParams& to, bool aligned, const float (&sums)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    if (Map::RowOf(i) >= to.rows) continue;
    const int64_t row = Map::RowOf(i) * to.pitch;
#pragma unroll
    for (int j = 0; j < kN; j += 4) {
      const int column = Map::ColumnOf(j);
      if (aligned) {
        if (column < to.columns) StoreQuad<kReadC>(to, row + column, &sums[i][j]);
      } else {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if (column + q < to.columns) {
            const int64_t offset = row + column + q;
            const float old = kReadC ? to.c[offset] : 0.0f;
            to.out[offset] = LinearCombination(to.alpha, sums[i][j + q], to.beta, old);
          }
        }
      }
    }
  }
}

// `aligned`: rows of c and of out start at 16-byte boundaries.
template <class Map, int kM, int kN>
__device__ void FinishThreadTile(const EpilogueParams& to, bool aligned,
                                 const float (&sums)[kM][kN]) {
  if (to.beta == 0.0f) {
    StoreElements<Map, false>(to, aligned, sums);
  } else {
    StoreElements<Map, true>(to, aligned, sums);
  }
}

}  // namespace jaxkernels
