// A parsed call of a row operation, for the CPU and CUDA alike.
//
// Owns: this plain value. Must not know: XLA (read_call.h parses an XLA call into it), any device.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "rows/masked_rows.h"
#include "rows/operations.h"

namespace jaxkernels {

// Arrays of shape (rows, cols), aligned to their elements. A bias may broadcast.
struct RowArrays {
  // x; or scores and their bias; or y (or x) and the cotangent of y
  const void* in[2];
  void* out;  // null if the part is kStatistics, or the operation stores no elements
  int64_t rows;
  int64_t cols;
};

// Consecutive numbers per row, in the arrays' dtype or, if `wide`, in the compute type.
struct RowScalars {
  void* data;
  bool wide;
};

// The temperature, and the soft cap if there are two numbers, of each row, in the compute type.
// Logits x of a row become cap tanh(x / cap) / temperature, without a cap x / temperature; -inf
// stays -inf.
struct RowScales {
  const void* data;  // null: no transform
  int count;
};

// A vector along the columns, in the arrays' dtype or, if `wide`, in the compute type.
struct RowColumn {
  const void* data;
  bool wide;
};

struct RowCall {
  Operation operation = Operation::kSoftmaxForward;
  Part part = Part::kWhole;
  Tier tier = Tier::kAuto;               // GPU only
  DType dtype = DType::kFloat32;         // of the elements
  DType result_dtype = DType::kFloat32;  // of the results: equal, or narrower (MayNarrow)
  RowArrays arrays = {};
  MaskedRows masking = {};          // for attention operations; losses use its mask alone
  const int32_t* labels = nullptr;  // a column per row; may be out of range
  RowScales scales = {};
  RowScalars scalars_in[2] = {}, scalars_out = {};
  RowColumn column = {};
  double epsilon = 0;          // added to the mean of the first terms
  bool all_sums = false;       // cross entropy: also the sums for smoothing and entropy
  void* statistics = nullptr;  // for parts: maximum and sums per row, in the compute type
};

}  // namespace jaxkernels
