// SgemmProblem describes out = alpha * op(A) op(B) + beta * C, for every batch member.
//
// Owns: the description as a plain value, and its canonical form. Matrices are row-major. Their
// rows follow one another without gaps, except for the padding that a plan requests. Must not know:
// CUDA, XLA, Python.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jaxkernels {

inline constexpr int kMaxBatchDims = 4;
inline constexpr int kFloatsOfPack = 4;  // 16 bytes

// BatchDim is a batch dimension. Strides count matrices; stride 0 means that all members share the
// operand. Matrices of C and of the result are contiguous, the last dimension fastest.
struct BatchDim {
  int64_t size = 1;
  int64_t stride_a = 0;
  int64_t stride_b = 0;
};

// Batch is the leading dimensions of a product, outermost first. MakeSgemmProblem leaves no
// dimension of size 1; a group of a batch may have one. Entries from `dims` on are {1, 0, 0}.
struct Batch {
  int dims = 0;
  BatchDim dim[kMaxBatchDims];

  int64_t Count() const {
    int64_t count = 1;
    for (int i = 0; i < dims; ++i) count *= dim[i].size;
    return count;
  }
  // MatricesOf returns the matrices of an operand in memory: one more than the index of the last.
  int64_t MatricesOf(int64_t BatchDim::* stride) const {
    int64_t last = 0;
    for (int i = 0; i < dims; ++i) last += (dim[i].size - 1) * dim[i].*stride;
    return last + 1;
  }
};

struct SgemmProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool trans_a = false;  // A is stored as (k, m) instead of (m, k)
  bool trans_b = false;  // B is stored as (n, k) instead of (k, n)
  int pad_a = 0;         // padding elements after every stored row of A
  int pad_b = 0;
  bool aligned_a = true;  // A starts at a 16-byte boundary
  bool aligned_b = true;
  bool aligned_c = true;   // so do C, the result and the split-k sums
  bool adds_c = false;     // beta may be nonzero
  bool for_batch = false;  // the order of summation may depend on the batch
  Batch batch;

  // BatchCountForOrder returns the number of batch members on which the order of summation may
  // depend: all of them if for_batch, else one.
  int64_t BatchCountForOrder() const { return for_batch ? batch.Count() : 1; }
  // PitchA and PitchB return the elements from the start of a stored row to that of the next.
  int64_t PitchA() const { return (trans_a ? m : k) + pad_a; }
  int64_t PitchB() const { return (trans_b ? k : n) + pad_b; }
  // HasAlignedRowsA tells whether all stored rows start at 16-byte boundaries.
  bool HasAlignedRowsA() const { return aligned_a && PitchA() % kFloatsOfPack == 0; }
  bool HasAlignedRowsB() const { return aligned_b && PitchB() % kFloatsOfPack == 0; }
  bool HasAlignedRowsC() const { return aligned_c && n % kFloatsOfPack == 0; }
  // HasAlignedPairsC tells whether pairs of elements of C start at 8-byte boundaries.
  bool HasAlignedPairsC() const { return aligned_c && n % 2 == 0; }
};

struct SgemmProblemResult {
  SgemmProblem problem;
  std::string error;
};

// MakeSgemmProblem describes the product of two operands of equal rank >= 2 with leading dimensions
// that broadcast (equal, or 1 in one operand). It merges neighbouring batch dimensions if both
// operands allow it.
SgemmProblemResult MakeSgemmProblem(const std::vector<int64_t>& a_shape,
                                    const std::vector<int64_t>& b_shape, bool trans_a,
                                    bool trans_b);

}  // namespace jaxkernels
