// The visible columns of each row of attention scores: its band, and its rows of mask and bias.
//
// Owns: the position of a row in its (q, k) matrix, and the addressing of operands that broadcast
// against the scores. Handlers, CPU and GPU kernels share this plain value. Must not know: XLA,
// CUDA, threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace jaxkernels {

// Division of row indices by an invariant divisor with a multiplication and a shift, since every
// row divides before its first load (Granlund and Montgomery 1994, "Division by invariant
// integers"). It uses 32 bits if there are at most 2^31 indices.
class Divider {
 public:
  Divider() = default;
  // Divides indices below `indices`, which is at most 2^62.
  Divider(int64_t divisor, int64_t indices)
      : divisor_(divisor), is_short_(indices <= int64_t{1} << 31) {
    __extension__ using Wide = unsigned __int128;
    while (int64_t{1} << log2_ < divisor) ++log2_;
    const int bits = (is_short_ ? 31 : 63) + log2_;
    factor_ = static_cast<uint64_t>(((Wide{1} << bits) + divisor - 1) / divisor);
  }

  // Whether 32 bits suffice.
  JK_HOST_DEVICE bool IsShort() const { return is_short_; }
  // Requires: IsShort().
  JK_HOST_DEVICE uint32_t Quotient(uint32_t index) const {
    const uint64_t product = uint64_t{index << 1} * static_cast<uint32_t>(factor_);
    return static_cast<uint32_t>(product >> 32) >> log2_;
  }
  JK_HOST_DEVICE int64_t Quotient(int64_t index) const {
    if (is_short_) return Quotient(static_cast<uint32_t>(index));
    const uint64_t twice = static_cast<uint64_t>(index) << 1;
#ifdef __CUDA_ARCH__
    return static_cast<int64_t>(__umul64hi(twice, factor_) >> log2_);
#else
    __extension__ using Wide = unsigned __int128;
    return static_cast<int64_t>(static_cast<uint64_t>(Wide{twice} * factor_ >> 64) >> log2_);
#endif
  }
  template <typename Index>
  JK_HOST_DEVICE Index Remainder(Index index) const {
    return index - Quotient(index) * static_cast<Index>(divisor_);
  }

 private:
  int64_t divisor_ = 1;
  uint64_t factor_ = uint64_t{1} << 31;  // 2^(31 or 63 + log2_) / divisor_, rounded up
  int log2_ = 0;                         // of the divisor, rounded up
  bool is_short_ = true;
};

// Maps a row of the scores to a row of an operand that broadcasts (has dimensions of size 1).
// Adjacent dimensions of the same kind are merged, so that most operands need one or two.
struct BroadcastRows {
  static constexpr int kMaxDims = 8;

  struct Dim {
    int64_t size;
    int64_t stride;  // in rows of the operand; 0 if the dimension broadcasts
    Divider by_size;
  };

  int dims = 0;
  Dim dim[kMaxDims] = {};  // innermost first

  // `Index` here and below: uint32_t if the dividers are short, else int64_t.
  template <typename Index>
  JK_HOST_DEVICE Index Of(Index row) const {
    Index found = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int i = 0; i < dims; ++i) {
      const Index outer = dim[i].by_size.Quotient(row);
      found += (row - outer * static_cast<Index>(dim[i].size)) * static_cast<Index>(dim[i].stride);
      row = outer;
    }
    return found;
  }
};

// Builds the map for dimensions `full` of the scores and `operand` of the operand, without the
// columns. Each dimension of the operand equals that of the scores or is 1. Returns false if the
// two kinds alternate too often.
inline bool MakeBroadcastRows(const int64_t* full, const int64_t* operand, std::size_t rank,
                              BroadcastRows* rows) {
  *rows = {};
  int64_t operand_rows = 1;
  bool has_room = true;
  for (std::size_t i = rank; i-- > 0;) {
    if (full[i] == 0) return true;  // there are no rows to map
    if (full[i] == 1) continue;
    const int64_t stride = operand[i] == 1 ? 0 : operand_rows;
    operand_rows *= operand[i];
    if (!has_room && stride == 0) continue;  // irrelevant if it is the outermost
    if (!has_room) return false;
    BroadcastRows::Dim* const last = rows->dims > 0 ? &rows->dim[rows->dims - 1] : nullptr;
    if (last != nullptr && stride == last->stride * last->size) {
      last->size *= full[i];
    } else if (rows->dims == BroadcastRows::kMaxDims) {
      has_room = false;
      if (stride != 0) return false;
    } else {
      rows->dim[rows->dims++] = {full[i], stride, {}};
    }
  }
  int64_t rows_of_scores = 1;
  for (std::size_t i = 0; i < rank; ++i) rows_of_scores *= full[i];
  for (int i = 0; i < rows->dims; ++i) {
    rows->dim[i].by_size = Divider(rows->dim[i].size, rows_of_scores);
  }
  // An outermost dimension that broadcasts is dropped: the remaining row index is not used.
  if (rows->dims > 0 && rows->dim[rows->dims - 1].stride == 0) --rows->dims;
  return true;
}

// The processing order of rows. If heads whose rows lie far apart share a mask, the rows that share
// a row of the mask are consecutive, so that it is read once and stays in the L2 cache.
class RowOrder {
 public:
  RowOrder() = default;  // memory order
  // Scores have [outer, shared, inner] rows; the mask has [outer, inner].
  RowOrder(int64_t shared, int64_t inner, int64_t rows)
      : shared_(shared), inner_(inner), by_shared_(shared, rows), by_inner_(inner, rows) {}

  template <typename Index>
  JK_HOST_DEVICE Index RowAt(Index turn) const {
    if (shared_ == 1) return turn;
    const auto shared = static_cast<Index>(shared_), inner = static_cast<Index>(inner_);
    const Index outer_inner = by_shared_.Quotient(turn);
    const Index outer = by_inner_.Quotient(outer_inner);
    const Index of_shared = turn - outer_inner * shared;
    return (outer * shared + of_shared) * inner + (outer_inner - outer * inner);
  }

 private:
  int64_t shared_ = 1, inner_ = 1;
  Divider by_shared_, by_inner_;
};

// Columns [begin, end).
struct ColumnRange {
  int begin, end;
};

struct MaskedRows {
  // No bound on this side. Columns, and rows of a matrix with bounds, are fewer than this, so that
  // sums fit in 32 bits.
  static constexpr int kUnbounded = 1 << 30;

  double scale = 1;
  Divider by_q;  // divides by the rows of one matrix of scores
  // Columns i + left .. i + right are visible to row i of a matrix.
  int left = -kUnbounded, right = kUnbounded;
  const uint8_t* mask = nullptr;  // bytes 0 or 1, with `cols` columns; may be null
  BroadcastRows mask_rows, bias_rows;
  RowOrder order;

  bool IsOpen() const { return left == -kUnbounded && right == kUnbounded; }
  // Requires: all dividers were made for the same number of rows.
  JK_HOST_DEVICE bool IsShort() const { return by_q.IsShort(); }
  template <typename Index>
  JK_HOST_DEVICE ColumnRange ColumnsOf(Index row, int64_t cols) const {
    const int all = static_cast<int>(cols);
    if (left == -kUnbounded && right == kUnbounded) return {0, all};
    const int i = static_cast<int>(by_q.Remainder(row));
    const int begin = Clamp(i + left, 0, all);
    return {begin, Clamp(i + right + 1, begin, all)};
  }
  template <typename Index>
  JK_HOST_DEVICE const uint8_t* MaskOf(Index row, int64_t cols) const {
    return mask == nullptr ? nullptr : mask + static_cast<int64_t>(mask_rows.Of(row)) * cols;
  }

 private:
  JK_HOST_DEVICE static int Clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
  }
};

}  // namespace jaxkernels
