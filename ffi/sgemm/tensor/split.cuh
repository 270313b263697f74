// The pass before the product: computes the scales of lines, and splits lines into pairs.
//
// Owns: the path of an operand, its blocks, and the kernel. Must not know: the product.
#ifndef JAXKERNELS_SGEMM_TENSOR_SPLIT_CUH_
#define JAXKERNELS_SGEMM_TENSOR_SPLIT_CUH_

#include "sgemm/tensor/split_images.cuh"
#include "sgemm/tensor/split_lines.cuh"

namespace jaxkernels {

// SplitBlocks returns the blocks of a pass for an operand. The first pass does all work for a
// K-major operand.
// H200, 4096^3, by images in two passes, or by lines if K-major, us (2026-11):
// NT 106, 75
// NN 106, 95
template <SplitPass kPass>
int64_t SplitBlocks(const TensorOperand& operand) {
  if (!operand.along_k) return operand.Images();
  return kPass == SplitPass::kFirst ? BlocksOfLines(operand) : 0;
}

// SplitOperands: the first `blocks_a` blocks are for A, the others for B. The second pass starts
// with the data that the first one read last, which may still be in the L2.
template <SplitPass kPass>
__global__ void __launch_bounds__(kSplitThreads, 4)
    SplitOperands(const __grid_constant__ TensorArgs args, unsigned blocks_a) {
  extern __shared__ __align__(128) char bytes[];
  const unsigned index = kPass == SplitPass::kFirst ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  const bool of_a = index < blocks_a;
  const TensorOperand& operand = of_a ? args.a : args.b;
  const unsigned block = of_a ? index : index - blocks_a;
  if (kPass == SplitPass::kFirst && operand.along_k) {
    SplitLines(operand, block);
  } else {
    SplitImage<kPass>(operand, block, *reinterpret_cast<SplitSmem*>(bytes));
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_SPLIT_CUH_
