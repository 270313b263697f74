// Recomputes elements of C that pairs cannot represent, from the original operands.
//
// Owns: their sums, and with split-k those of whole tiles. Must not know: why an element is listed,
// or a tile flagged (finish.cuh).
#ifndef JAXKERNELS_SGEMM_TENSOR_REPAIR_CUH_
#define JAXKERNELS_SGEMM_TENSOR_REPAIR_CUH_

#include "sgemm/epilogue.cuh"
#include "sgemm/tensor/args.cuh"
#include "sgemm/tensor/repair_tiles.cuh"

namespace jaxkernels {

inline constexpr int kRepairWarps = kRepairThreads / 32;
inline constexpr int kRepairBlocksOfSm = 4;

// RepairElements computes one element per block at a time, in any order: the sum of an element
// depends only on its operands. Sums are float64, because it costs nothing here. kTiles: the blocks
// also recompute flagged tiles, and skip listed elements of these.
template <bool kTiles>
__global__ void __launch_bounds__(kRepairThreads, kTiles ? kRepairBlocksOfSm : 0)
    RepairElements(const __grid_constant__ TensorArgs args) {
  __shared__ double of_warp[kRepairWarps];
  const SgemmArgs& product = args.product;
  const uint32_t count = *args.repair_count;
  const unsigned of_member = args.tiles_m * args.tiles_n;
  for (uint32_t index = blockIdx.x; index < count; index += gridDim.x) {
    const uint2 repair = args.repairs[index];
    const int member = static_cast<int>(repair.x / of_member);
    if (kTiles ? IsMadeAgain(args, repair.x) : IsInVain(args, member)) continue;
    const unsigned tile = repair.x % of_member;
    const int64_t row = int64_t{tile / args.tiles_n} * kTensorLines + repair.y / kTensorLines;
    const int64_t column = int64_t{tile % args.tiles_n} * kTensorLines + repair.y % kTensorLines;
    const MemberIndices members = IndicesOfMember(product, member);
    const auto begin_of = [](const TensorOperand& operand, int index, int64_t line) {
      return operand.data + index * operand.MemberElements() +
             line * (operand.along_k ? operand.pitch : 1);
    };
    const float* const a = begin_of(args.a, members.a, row);
    const float* const b = begin_of(args.b, members.b, column);
    const int64_t next_a = args.a.along_k ? 1 : args.a.pitch;
    const int64_t next_b = args.b.along_k ? 1 : args.b.pitch;
    double sum = 0.0;
#pragma unroll 8
    for (int64_t k = threadIdx.x; k < product.k; k += kRepairThreads) {
      sum = fma(static_cast<double>(a[k * next_a]), static_cast<double>(b[k * next_b]), sum);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < kRepairWarps; ++i) sum += of_warp[i];
      const int64_t at = (int64_t{member} * product.m + row) * product.n + column;
      product.out[at] =
          CombineWith(product.alpha, static_cast<float>(sum), product.beta, product.c + at);
    }
  }
  if constexpr (kTiles) RepairTiles(args);
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TENSOR_REPAIR_CUH_
