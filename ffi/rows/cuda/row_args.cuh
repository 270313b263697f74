// What the tiers share: a kernel's arguments, and a row as its operation sees it. How packs of it
// are loaded: row_packs.cuh.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_ARGS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_ARGS_CUH_

#include <cmath>

#include "core/reduce.cuh"
#include "core/row_window.cuh"
#include "rows/call.h"
#include "rows/operations.h"
#include "rows/row_batches.h"

namespace jaxkernels {

// What a row is given besides its elements; nothing past the last row.
template <typename Op>
struct GivenRow {
  using C = typename Op::C;

  int64_t cols = 0;
  C scalar[Op::kTakes > 0 ? Op::kTakes : 1] = {};
  int label = -1;  // cols, if it is beyond the row
  C labelled = 0;  // the element at the label, where the row is reduced; NaN if that is beyond it
};

template <typename Op>
struct RowArgs {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  // The numbers of a row that come from the first array of row scalars.
  static constexpr int kTakesFirst = TraitsOf(Op::kOperation).operands.RowNumbers(0);

  const T* in[Op::kInputs];
  typename Op::Result* out;
  int64_t rows, cols;
  int kept_packs;  // of each input, in the shared memory of a block, or of few rows its registers
  int offset;      // elements of the first pack before the result begins; the pointers are there
  int leaf_turns;  // packs of a leaf that a lane has; rows read in leaves only
  int branches;    // parts of a row, a block each; `stream` only
  int lanes;       // that share a row; staged rows and the parts of an operation only
  int staged_rows, row_spacing;  // rows that a warp moves together, distance of those it computes
  Op op;
  RowBatches batches;  // block_smem and cluster only
  const int32_t* labels;
  RowScalars scalars_in[2], scalars_out;

  // Scalars [kBegin, kEnd) of a row, which are an array.
  template <int kBegin, int kEnd, int kSize>
  __device__ static void LoadScalars(const RowScalars& from, int64_t row, C (&scalar)[kSize]) {
    const auto load = [&](const auto* row_scalars) {
#pragma unroll
      for (int i = kBegin; i < kEnd; ++i) scalar[i] = static_cast<C>(row_scalars[i - kBegin]);
    };
    const int64_t at = row * (kEnd - kBegin);
    if (from.wide) {
      load(static_cast<const C*>(from.data) + at);
    } else {
      load(static_cast<const T*>(from.data) + at);
    }
  }
  // The label of a row; none past the last. To be asked for before the elements of the row: it
  // arrives with them, and GivenOf, which loads by it, need not wait.
  __device__ int LabelOf(int64_t row) const {
    if constexpr (Op::kTakesLabel) {
      if (row < rows) return labels[row];
    }
    return -1;
  }
  // To be asked for before the sums of the row meet, so that it arrives meanwhile. `elements` are
  // those of the row, wherever they are.
  __device__ GivenRow<Op> GivenOf(int64_t row, int label, const T* elements) const {
    GivenRow<Op> given;
    if (row >= rows) return given;
    given.cols = cols;
    LoadScalars<0, kTakesFirst>(scalars_in[0], row, given.scalar);
    LoadScalars<kTakesFirst, Op::kTakes>(scalars_in[1], row, given.scalar);
    if constexpr (Op::kTakesLabel) {
      given.label = static_cast<int>(min(int64_t{label}, cols));
      if constexpr (Op::kSums > 0) {  // else it is among the scalars, and may be stored over
        const int64_t column = min(max(int64_t{label}, int64_t{0}), cols - 1);
        const C element = static_cast<C>(elements[column]);
        given.labelled = label < 0 ? C(0) : label < cols ? element : C(NAN);
      }
    }
    return given;
  }
  __device__ GivenRow<Op> GivenOf(int64_t row, int label) const {
    return GivenOf(row, label, in[0] + offset + row * cols);
  }
  // Past the end there is no row.
  template <int kCount>
  __device__ void StoreScalars(int64_t row, const C (&value)[kCount]) const {
    if (row >= rows) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t at = row * kCount + i;
      if (scalars_out.wide) {
        static_cast<C*>(scalars_out.data)[at] = value[i];
      } else {
        static_cast<T*>(scalars_out.data)[at] = static_cast<T>(value[i]);
      }
    }
  }
};

// The window of a row, and what its operation sees of it.
template <typename Op, bool kAligned>
struct RowView : RowWindow<typename Op::Storage, kAligned> {
  using Window = RowWindow<typename Op::Storage, kAligned>;
  using Window::kSize;

  typename Op::View seen;
  int first_seen = 0, end_seen = 0;  // packs within the band, or partly
  int cut_begin = 0, cut_end = 0;    // packs within which, or beside which, it begins and ends

  RowView() = default;
  // The row whose turn it is; empty when all have had theirs.
  __device__ RowView(const RowArgs<Op>& args, int64_t turn) {
    if (turn >= args.rows) return;
    if constexpr (Op::kHides) {
      const auto find = [&](auto index) {
        const auto row = args.op.rows.order.RowAt(index);
        static_cast<Window&>(*this) = Window(row, args.rows, args.cols, args.offset);
        seen = args.op.ViewOf(row, args.cols);
      };
      args.op.rows.IsShort() ? find(static_cast<uint32_t>(turn)) : find(turn);
      FindBand();
    } else {
      static_cast<Window&>(*this) = Window(turn, args.rows, args.cols, args.offset);
    }
  }
  __device__ RowView StartAtLine() const {
    RowView view = *this;
    view.Window::StartAtLine();
    if constexpr (Op::kHides) view.FindBand();
    return view;
  }
  // The same, and of it part `part`, where a part has `slots` packs.
  __device__ RowView PartFromLine(int part, int slots) const {
    RowView view = *this;
    view.Window::StartAtLine();
    view.Window::TakePart(part * slots, slots);
    if constexpr (Op::kHides) {
      view.FindBand();
      view.end_seen = min(view.end_seen, view.packs);
    }
    return view;
  }
  // The column of the first element of pack `index`; negative in the head.
  __device__ int Column(int index) const { return (index - this->lead) * kSize - this->head; }
  // The pack of a column that is not negative; that of another part may be negative.
  __device__ int PackOf(int column) const {
    return static_cast<int>(static_cast<unsigned>(column + this->head) / kSize) + this->lead;
  }
  // Whether pack `index` holds anything that the operation sees.
  __device__ bool Sees(int index) const {
    if constexpr (Op::kHides) {
      return index >= first_seen && index < end_seen;
    } else {
      return this->Has(index);
    }
  }
  // Whether the row has a mask.
  __device__ bool IsMasked() const {
    if constexpr (Op::kHides) {
      return seen.mask != nullptr;
    } else {
      return false;
    }
  }
  // Whether the band begins or ends within pack `index`, or just beside it.
  __device__ bool IsCut(int index) const {
    return Op::kHides && (index == cut_begin || index == cut_end);
  }
  // Whether it sees nothing of `count` packs from `first` on, because of its band.
  __device__ bool IsBlind(int first, int count) const {
    return Op::kHides && (first >= end_seen || first + count <= first_seen);
  }

 private:
  // Once a row instead of once a pack, and asking only packs that are cut: a causal row takes 534
  // instructions a warp instead of 693.
  // H200 bf16 4096 cols, causal, time over that of a copy (2026-11): 1.34 before, 1.08 now
  __device__ void FindBand() {
    const auto pack_of = [&](int column) {  // which may be -1
      const auto counted = static_cast<unsigned>(column + this->head + kSize) / kSize;
      return static_cast<int>(counted) - 1 + this->lead;
    };
    first_seen = pack_of(seen.begin), end_seen = pack_of(seen.end - 1) + 1;
    if (seen.begin == seen.end) end_seen = first_seen;
    cut_begin = pack_of(seen.begin - 1), cut_end = pack_of(seen.end);
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_ARGS_CUH_
