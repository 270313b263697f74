// What the tiers share: a kernel's arguments, and a row as its operation sees it. How packs of it
// are loaded: row_packs.cuh.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_ARGS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_ARGS_CUH_

#include "core/reduce.cuh"
#include "core/row_window.cuh"
#include "rows/call.h"
#include "rows/row_batches.h"

namespace jaxkernels {

template <typename Op>
struct RowArgs {
  using T = typename Op::Storage;
  using C = ComputeType<T>;

  const T* in[Op::kInputs];
  T* out;
  int64_t rows, cols;
  int kept_packs;  // of each input, in the shared memory of a block; long rows only
  int offset;      // elements of the first pack before the result begins; the pointers are there
  int leaf_turns, branches;      // packs of a leaf that a lane has, blocks of a row; spread only
  int lanes;                     // that share a row; staged rows and the parts of an operation only
  int staged_rows, row_spacing;  // rows that a warp moves together, distance of those it computes
  Op op;
  RowBatches batches;  // block_smem and cluster only
  RowScalars scalars_in, scalars_out;

  __device__ C LoadScalar(int64_t row) const {
    return scalars_in.wide ? static_cast<const C*>(scalars_in.data)[row]
                           : static_cast<C>(static_cast<const T*>(scalars_in.data)[row]);
  }
  // Past the end there is no row.
  __device__ void StoreScalar(int64_t row, C value) const {
    if (row >= rows) return;
    if (scalars_out.wide) {
      static_cast<C*>(scalars_out.data)[row] = value;
    } else {
      static_cast<T*>(scalars_out.data)[row] = static_cast<T>(value);
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
