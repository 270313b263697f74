#include "sgemm/pipelined/tensor_map.h"

#include <atomic>

namespace jaxkernels {
namespace {

using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// FindEncode looks the function up in the loaded driver. The module links no driver, so that it can
// be imported on a machine without one. The symbol is cached; a failure is not.
cudaError_t FindEncode(EncodeFunction* encode) {
  static std::atomic<void*> known{nullptr};
  void* symbol = known.load(std::memory_order_relaxed);
  if (symbol == nullptr) {
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol,
                                                               12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &symbol, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) return error;
    if (symbol == nullptr) return cudaErrorNotSupported;
    known.store(symbol, std::memory_order_relaxed);
  }
  *encode = reinterpret_cast<EncodeFunction>(symbol);
  return cudaSuccess;
}

}  // namespace

cudaError_t MapOperand(const TmaOperand& operand, CUtensorMap* map) {
  EncodeFunction encode = nullptr;
  if (const cudaError_t error = FindEncode(&encode); error != cudaSuccess) return error;
  const int64_t contiguous = operand.k_major ? operand.depth : operand.lines;
  const int64_t strided = operand.k_major ? operand.lines : operand.depth;
  const auto unsign = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t sizes[] = {unsign(contiguous), unsign(strided), unsign(operand.matrices)};
  const cuuint64_t strides[] = {unsign(operand.pitch * 4), unsign(operand.pitch * strided * 4)};
  const auto lines = static_cast<cuuint32_t>(operand.block_lines);
  const cuuint32_t box_k_major[] = {kBoxDepth, lines, 1};
  const cuuint32_t box[] = {lines, static_cast<cuuint32_t>(operand.block_k), 1};
  const cuuint32_t dense[] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(operand.data), sizes,
             strides, operand.k_major ? box_k_major : box, dense, CU_TENSOR_MAP_INTERLEAVE_NONE,
             operand.k_major ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace jaxkernels
