// The last step of every rung that keeps sums in registers: out = alpha * sum + beta * C.
//
// Owns: the stores, guarded at the edges of C. Must not know: how the sums came about.
#ifndef JAXKERNELS_SGEMM_EPILOGUE_CUH_
#define JAXKERNELS_SGEMM_EPILOGUE_CUH_

#include <cstdint>

namespace jaxkernels {

// Where a thread writes.
struct Destination {
  float alpha, beta;
  const float* c;  // at the thread's first element, as is `out`; read only where beta != 0
  float* out;
  int64_t pitch;          // elements from one row to the next
  int64_t rows, columns;  // that exist from the first element on
};

// Four neighbouring columns, aligned. A sum is never stored as it is: the compiler would keep sums
// in the registers that a store of 16 bytes wants, in conflict with the banks of the fragments.
template <bool kReadC>
__device__ inline void StoreQuad(const Destination& to, int64_t offset, const float* sums) {
  float4 old = {};
  if constexpr (kReadC) old = *reinterpret_cast<const float4*>(to.c + offset);
  *reinterpret_cast<float4*>(to.out + offset) = {
      fmaf(to.alpha, sums[0], to.beta * old.x), fmaf(to.alpha, sums[1], to.beta * old.y),
      fmaf(to.alpha, sums[2], to.beta * old.z), fmaf(to.alpha, sums[3], to.beta * old.w)};
}

// Element (i, j) of the thread lies at row `RowOf(i)`, column `ColumnOf(j)` from its first one;
// columns come in quads of neighbours.
template <class Map, bool kReadC, int kM, int kN>
__device__ void StoreElements(const Destination& to, bool aligned, const float (&sums)[kM][kN]) {
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
            to.out[offset] = fmaf(to.alpha, sums[i][j + q], to.beta * old);
          }
        }
      }
    }
  }
}

// `aligned`: rows of c and of out begin at multiples of 16 bytes.
template <class Map, int kM, int kN>
__device__ void FinishThreadTile(const Destination& to, bool aligned, const float (&sums)[kM][kN]) {
  if (to.beta == 0.0f) {
    StoreElements<Map, false>(to, aligned, sums);
  } else {
    StoreElements<Map, true>(to, aligned, sums);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_EPILOGUE_CUH_
