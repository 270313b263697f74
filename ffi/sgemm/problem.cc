#include "sgemm/problem.h"

#include <algorithm>

#include "core/shape_text.h"

namespace jaxkernels {

SgemmProblemResult MakeSgemmProblem(const std::vector<int64_t>& a_shape,
                                    const std::vector<int64_t>& b_shape, bool trans_a,
                                    bool trans_b) {
  SgemmProblem problem;
  const std::string operands = "a has shape " + ShapeText(a_shape) +
                               (trans_a ? ", transposed" : "") + ", b has shape " +
                               ShapeText(b_shape) + (trans_b ? ", transposed" : "");
  const std::size_t rank = a_shape.size();
  if (rank < 2 || b_shape.size() != rank) {
    return {problem, "operands need equal ranks of at least 2; " + operands};
  }
  const int64_t *a = &a_shape[rank - 2], *b = &b_shape[rank - 2];
  problem.m = a[trans_a ? 1 : 0];
  problem.k = a[trans_a ? 0 : 1];
  problem.n = b[trans_b ? 0 : 1];
  problem.trans_a = trans_a;
  problem.trans_b = trans_b;
  if (b[trans_b ? 1 : 0] != problem.k) {
    return {problem, "the contracted dimensions differ; " + operands};
  }

  // This loop goes from the innermost dimension outwards and merges a dimension with the previous
  // one where possible.
  std::vector<BatchDim> dims;
  int64_t matrices_a = 1, matrices_b = 1;
  for (std::size_t i = rank - 2; i-- > 0;) {
    const int64_t size_a = a_shape[i], size_b = b_shape[i];
    if (size_a != size_b && size_a != 1 && size_b != 1) {
      return {problem, "the batch dimensions do not broadcast; " + operands};
    }
    const BatchDim dim{size_a == 1 ? size_b : size_a, size_a == 1 ? 0 : matrices_a,
                       size_b == 1 ? 0 : matrices_b};
    matrices_a *= size_a;
    matrices_b *= size_b;
    if (dim.size == 1) continue;
    if (!dims.empty() && dim.stride_a == dims.back().stride_a * dims.back().size &&
        dim.stride_b == dims.back().stride_b * dims.back().size) {
      dims.back().size *= dim.size;
    } else {
      dims.push_back(dim);
    }
  }
  if (dims.size() > kMaxBatchDims) {
    return {problem, "batch dimensions that broadcast by turns more than " +
                         std::to_string(kMaxBatchDims) + " times are not served; " + operands};
  }
  problem.batch.dims = static_cast<int>(dims.size());
  std::reverse_copy(dims.begin(), dims.end(), problem.batch.dim);
  return {problem, ""};
}

}  // namespace jaxkernels
