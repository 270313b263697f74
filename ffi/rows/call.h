// A call of a row operation, as all that follows the parser sees it, on the CPU and on CUDA alike.
//
// Owns: that plain value. Must not know: XLA (read_call.h makes it of a call of XLA), any device.
#ifndef JAXKERNELS_ROWS_CALL_H_
#define JAXKERNELS_ROWS_CALL_H_

#include <cstdint>

#include "core/dtype.h"
#include "rows/masked_rows.h"
#include "rows/operations.h"

namespace jaxkernels {

// Aligned to their elements, and of shape (rows, cols), but for a bias that broadcasts.
struct RowArrays {
  // x; scores and their bias; y and its cotangent (tangent); x and its tangent
  const void* in[2];
  void* out;  // null if the part is kStatistics, or the operation stores no elements
  int64_t rows;
  int64_t cols;
};

// Numbers of each row, side by side: of the dtype of the arrays or, if wide, of the type that they
// are computed in.
struct RowScalars {
  void* data;
  bool wide;
};

struct RowCall {
  Operation operation = Operation::kSoftmaxForward;
  Part part = Part::kWhole;
  Tier tier = Tier::kAuto;               // of the GPU's kernels
  DType dtype = DType::kFloat32;         // of the elements
  DType result_dtype = DType::kFloat32;  // of the results: the same, or narrower (MayNarrow)
  RowArrays arrays = {};
  MaskedRows attention = {};        // of the operations on attention scores
  const int32_t* labels = nullptr;  // a column of each row, or one that the row does not have
  RowScalars scalars_in[2] = {}, scalars_out = {};
  bool all_sums = false;       // cross entropy: what only smoothing and the entropy need, too
  void* statistics = nullptr;  // of the parts: maximum and sums of every row, in the compute type
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CALL_H_
