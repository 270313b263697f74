// What is to be computed: out = alpha * op(A) op(B) + beta * C, for every member of a batch.
//
// Owns: the description of a matrix product, as a plain value, and its canonical form. Row-major
// throughout; a matrix is stored as its rows, one after the other, without gaps but for the padding
// that a plan has asked for. Must not know: CUDA, XLA, Python.
#ifndef JAXKERNELS_SGEMM_PROBLEM_H_
#define JAXKERNELS_SGEMM_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

namespace jaxkernels {

inline constexpr int kMaxBatchDims = 4;
inline constexpr int kFloatsOfPack = 4;  // 16 bytes

// A batch dimension: how far apart its members lie, in matrices. Stride 0 is an operand that all
// members share. Members of C and of the result lie side by side, the last dimension fastest.
struct BatchDim {
  int64_t size = 1;
  int64_t stride_a = 0;
  int64_t stride_b = 0;

  bool operator==(const BatchDim& o) const {
    return size == o.size && stride_a == o.stride_a && stride_b == o.stride_b;
  }
};

struct SgemmProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool trans_a = false;  // A is stored as (k, m) instead of (m, k)
  bool trans_b = false;  // B is stored as (n, k) instead of (k, n)
  int pad_a = 0;         // elements behind every row of A in memory that do not count
  int pad_b = 0;
  bool aligned_a = true;  // A begins at a multiple of 16 bytes
  bool aligned_b = true;
  bool aligned_c = true;   // so do C, the result and the sums of the splits
  bool adds_c = false;     // beta is not zero, or not known to be
  bool for_batch = false;  // members may be summed in another order than they would be alone
  int batch_dims = 0;
  BatchDim batch[kMaxBatchDims];  // outermost first; sizes are at least 2, and 1 past the last

  // Members of the batch.
  int64_t Batch() const {
    int64_t members = 1;
    for (int i = 0; i < batch_dims; ++i) members *= batch[i].size;
    return members;
  }
  // Matrices of an operand in memory: one more than the index of the last.
  int64_t MembersOf(int64_t BatchDim::* stride) const {
    int64_t last = 0;
    for (int i = 0; i < batch_dims; ++i) last += (batch[i].size - 1) * batch[i].*stride;
    return last + 1;
  }
  // Elements from the beginning of a stored row to that of the next.
  int64_t PitchA() const { return (trans_a ? m : k) + pad_a; }
  int64_t PitchB() const { return (trans_b ? k : n) + pad_b; }
  // Whether all stored rows begin at multiples of 16 bytes.
  bool HasAlignedRowsA() const { return aligned_a && PitchA() % kFloatsOfPack == 0; }
  bool HasAlignedRowsB() const { return aligned_b && PitchB() % kFloatsOfPack == 0; }
  bool HasAlignedRowsC() const { return aligned_c && n % kFloatsOfPack == 0; }
  // Whether pairs of elements of C begin at multiples of 8 bytes.
  bool HasAlignedPairsC() const { return aligned_c && n % 2 == 0; }
};

// A problem, or why there is none.
struct SgemmProblemResult {
  SgemmProblem problem;
  std::string error;
};

// The problem of two operands of equal rank >= 2 whose leading dimensions broadcast (equal, or 1 in
// one of them). Neighbouring batch dimensions become one wherever both operands allow it.
SgemmProblemResult MakeSgemmProblem(const std::vector<int64_t>& a_shape,
                                    const std::vector<int64_t>& b_shape, bool trans_a,
                                    bool trans_b);

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_PROBLEM_H_
