// The arithmetic of every rung that keeps sums in registers: sums += a b^T for one k.
#ifndef JAXKERNELS_SGEMM_RUNGS_OUTER_PRODUCT_CUH_
#define JAXKERNELS_SGEMM_RUNGS_OUTER_PRODUCT_CUH_

namespace jaxkernels {

// An SM sub-partition issues one instruction a cycle, but its registers lie in two banks, of which
// each gives one register a cycle. An FFMA has three operands; where it takes one from the
// instruction before (the reuse cache) and the others lie in different banks, it costs one cycle,
// else two. Rows are therefore worked through from end to end, even ones to the right and odd ones
// back, so that a turn keeps b; pairs are swapped because the compiler then finds registers without
// conflicts.
// 8 x 16 sums, of 128 FFMA in one cycle (counted in the machine code, nvcc 13.0): so 121, in plain
// order 114
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

#endif  // JAXKERNELS_SGEMM_RUNGS_OUTER_PRODUCT_CUH_
