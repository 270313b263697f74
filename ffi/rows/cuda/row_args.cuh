// What the tiers share: a kernel's arguments, a row as its operation sees it, and how packs of it
// are loaded and masked. What is computed from them: row_steps.cuh.
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

// The element that stands for what a row does not see of input `i`.
template <typename Op>
__device__ typename Op::Storage FillOf(int i) {
  return static_cast<typename Op::Storage>(Op::Fill(i));
}

// One pack of each input, and of the mask.
template <typename Op>
struct InputPacks {
  Pack<typename Op::Storage> input[Op::kInputs];
  typename Op::MaskWord mask;
};

// The pack of an input whose rows lie elsewhere than those of the first: rows that begin within a
// pack have another alignment there, and are gathered.
template <typename Op, bool kAligned>
__device__ void LoadShiftedPack(Pack<typename Op::Storage>& pack, const typename Op::Storage* base,
                                const RowView<Op, kAligned>& row, int index) {
  using P = Pack<typename Op::Storage>;
  const auto* const shifted = base + row.seen.bias_shift;
  if constexpr (kAligned) {
    CopyPack(&pack, shifted, row.first + index);
  } else {
    const int column = row.Column(index);
    GatherPack(&pack, shifted + (row.first + index) * P::kSize, row.seen.begin - column,
               row.seen.end - column, FillOf<Op>(1));
  }
}

// The same, on its way to shared memory; asynchronous where it is aligned.
template <typename Op, bool kAligned>
__device__ void CopyShiftedPack(Pack<typename Op::Storage>* to, const typename Op::Storage* base,
                                const RowView<Op, kAligned>& row, int index) {
  using P = Pack<typename Op::Storage>;
  if constexpr (kAligned) {
    const auto* const shifted = reinterpret_cast<const P*>(base + row.seen.bias_shift);
    CopyPackAsync(to, shifted + row.first + index);
  } else {
    P pack;
    LoadShiftedPack<Op>(pack, base, row, index);
    *to = pack;
  }
}

// The mask of a pack.
// Requires: the row has a mask.
template <typename Op, bool kAligned>
__device__ void LoadMask(typename Op::MaskWord& bytes, const RowView<Op, kAligned>& row,
                         int index) {
  constexpr int kSize = Pack<typename Op::Storage>::kSize;
  const int column = row.Column(index);
  const uint8_t* const from = row.seen.mask + column;
  if constexpr (kAligned && kSize >= 4) {
    bytes = *reinterpret_cast<const typename Op::MaskWord*>(from);
  } else {
    bytes = {};
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (column + j < row.seen.begin || column + j >= row.seen.end) continue;
      if (from[j] != 0) bytes.Set(j);
    }
  }
}

// The same, on its way to shared memory; asynchronous where it is aligned.
template <typename Op, bool kAligned>
__device__ void CopyMask(typename Op::MaskWord* to, const RowView<Op, kAligned>& row, int index) {
  constexpr int kSize = Pack<typename Op::Storage>::kSize;
  if constexpr (kAligned && kSize >= 4) {
    CopyWordsAsync<sizeof(*to)>(to, row.seen.mask + row.Column(index));
  } else {
    typename Op::MaskWord bytes;
    LoadMask<Op>(bytes, row, index);
    *to = bytes;
  }
}

template <typename Op>
inline constexpr bool kHasMask = !std::is_empty_v<typename Op::MaskWord>;

// Requires: the row sees the pack.
template <Inputs kInputs, typename Op, bool kAligned>
__device__ void LoadInputs(InputPacks<Op>& pack, const RowArgs<Op>& args,
                           const RowView<Op, kAligned>& row, int index) {
  LoadPack<kInputs>(pack.input[0], args.in[0], row, index);
#pragma unroll
  for (int i = 1; i < Op::kInputs; ++i) {
    if constexpr (Op::kSharesRows) {
      LoadPack<kInputs>(pack.input[i], args.in[i], row, index);
    } else {
      LoadShiftedPack<Op>(pack.input[i], args.in[i], row, index);
    }
  }
}

// Replaces what the operation does not see of a pack. Nearly all packs are wholly within the band,
// or wholly outside and so filled already.
template <typename Op, bool kAligned>
__device__ void HidePacks(InputPacks<Op>& pack, const RowView<Op, kAligned>& row, int index) {
  if constexpr (kHasMask<Op>) {
#pragma unroll
    for (int i = 0; i < Op::kInputs && row.IsMasked(); ++i) {
      SelectElements(pack.input[i], pack.mask.word, FillOf<Op>(i));
    }
  }
  if constexpr (Op::kHides) {
    const int column = row.Column(index);
#pragma unroll
    for (int i = 0; i < Op::kInputs && row.IsCut(index); ++i) {
      KeepElements(pack.input[i], row.seen.begin - column, row.seen.end - column, FillOf<Op>(i));
    }
  }
}

// Replaces what does not belong to the row by Op::Fill, which all storage types can represent.
// Requires: packs that the row does not see are filled.
template <typename Op, bool kAligned>
__device__ void MaskPacks(InputPacks<Op>& pack, const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int index) {
  if (Op::kHides && !row.Sees(index)) return;
#pragma unroll
  for (int i = 0; i < (Op::kSharesRows ? Op::kInputs : 1); ++i) {
    MaskPack(pack.input[i], args.in[i], row, index, FillOf<Op>(i));
  }
}

template <typename Op>
__device__ void FillPacks(InputPacks<Op>& pack) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
    FillPack(pack.input[i], FillOf<Op>(i));
  }
}

// Packs of a row from `first` on, `stride` apart, all on their way before the first use.
template <Inputs kInputs, typename Op, bool kAligned, int kCount>
__device__ void LoadPacks(InputPacks<Op> (&pack)[kCount], const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int first, int stride) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const int index = first + u * stride;
    FillPacks<Op>(pack[u]);
    if (row.Sees(index)) LoadInputs<kInputs>(pack[u], args, row, index);
  }
  if constexpr (kHasMask<Op>) {
#pragma unroll
    for (int u = 0; u < kCount && row.IsMasked(); ++u) {
      const int index = first + u * stride;
      if (row.Sees(index)) LoadMask<Op>(pack[u].mask, row, index);
    }
  }
}

// Replaces those of their elements that do not belong to the row, or that it does not see.
template <typename Op, bool kAligned, int kCount>
__device__ void MaskAndHidePacks(InputPacks<Op> (&pack)[kCount], const RowArgs<Op>& args,
                                 const RowView<Op, kAligned>& row, int first, int stride) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    MaskPacks<Op>(pack[u], args, row, first + u * stride);
    HidePacks<Op>(pack[u], row, first + u * stride);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_ARGS_CUH_
