// The arithmetic of every rung that keeps sums in registers: sums += a b^T for one k.
#pragma once

namespace jaxkernels {

// AddOuterProduct orders the FFMA so that few of them have register bank conflicts. An SM
// sub-partition issues one instruction a cycle, but its registers lie in two banks that deliver one
// register a cycle each. An FFMA has three operands. It costs one cycle if one operand is that of
// the previous instruction (the reuse cache) and the other two lie in different banks, else two.
// Even rows therefore run to the right and odd rows back, so that b stays in the cache from the end
// of a row to the next. Columns are swapped in pairs, because the compiler then finds registers
// without conflicts.
// FFMA in one cycle, of 128 for 8 x 16 sums (machine code, nvcc 13.0): 121; in plain order 114
template <int kM, int kN>
__device__ inline void AddOuterProduct(const float (&a)[kM], const float (&b)[kN],
                                       float (&sums)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const int column = (i % 2 == 0 ? j : kN - 1 - j) ^ 1;
      sums[i][column] = fmaf(a[i], b[column], sums[i][column]);
    }
  }
}

}  // namespace jaxkernels
