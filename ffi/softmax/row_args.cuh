// What the tiers share: a kernel's arguments, a row as its operation sees it, and how packs of it
// are loaded and masked. What is computed from them: row_steps.cuh.
#ifndef JAXKERNELS_SOFTMAX_ROW_ARGS_CUH_
#define JAXKERNELS_SOFTMAX_ROW_ARGS_CUH_

#include "common/pack.cuh"
#include "common/reduce.cuh"

namespace jaxkernels {

template <typename Op>
struct RowArgs {
  const typename Op::Storage* in[Op::kInputs];
  typename Op::Storage* out;
  int64_t rows, cols;
  int kept_packs;  // of each input, in shared memory; block_uncached only
  Op op;
};

// The window of a row, and what its operation sees of it.
template <typename Op, bool kAligned>
struct RowView : RowWindow<typename Op::Storage, kAligned> {
  using Window = RowWindow<typename Op::Storage, kAligned>;
  using Window::kSize;

  typename Op::View seen;
  bool hides = false;  // whether there is anything in the row that the operation does not see

  RowView() = default;
  // The row whose turn it is; empty when all have had theirs.
  __device__ RowView(const RowArgs<Op>& args, int64_t turn) {
    if (turn >= args.rows) return;
    int64_t row = turn;
    if constexpr (Op::kHides) row = args.op.rows.order.RowAt(turn);
    static_cast<Window&>(*this) = Window(row, args.rows, args.cols);
    if constexpr (Op::kHides) {
      seen = args.op.ViewOf(row, args.cols);
      hides = seen.mask != nullptr || seen.begin > 0 || seen.end < args.cols;
    }
  }
  __device__ RowView StartAtLine() const {
    RowView view = *this;
    view.Window::StartAtLine();
    return view;
  }
  // The column of the first element of pack `index`; negative in the head.
  __device__ int Column(int index) const { return (index - this->lead) * kSize - this->head; }
  // Whether pack `index` holds anything that the operation sees.
  __device__ bool Sees(int index) const {
    if constexpr (Op::kHides) {
      const int column = Column(index);
      return this->Has(index) && column < seen.end && column + kSize > seen.begin;
    } else {
      return this->Has(index);
    }
  }
  // Whether it sees nothing of `count` packs from `first` on, because of its band.
  __device__ bool IsBlind(int first, int count) const {
    if constexpr (Op::kHides) {
      const int column = Column(first);
      return column >= seen.end || column + count * kSize <= seen.begin;
    } else {
      return false;
    }
  }
};

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
    pack = reinterpret_cast<const P*>(shifted)[row.first + index];
  } else {
    const auto fill = static_cast<typename Op::Storage>(Op::Fill());
    const int column = row.Column(index);
#pragma unroll
    for (int j = 0; j < P::kSize; ++j) {
      const bool seen = column + j >= row.seen.begin && column + j < row.seen.end;
      pack.element[j] = seen ? shifted[(row.first + index) * P::kSize + j] : fill;
    }
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
    LoadMask<Op>(*to, row, index);
  }
}

template <typename Op>
inline constexpr bool kHasMask = !std::is_empty_v<typename Op::MaskWord>;

// Requires: the row sees the pack.
template <typename Op, bool kAligned>
__device__ void LoadPacks(InputPacks<Op>& pack, const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int index) {
  LoadPack(pack.input[0], args.in[0], row, index);
#pragma unroll
  for (int i = 1; i < Op::kInputs; ++i) {
    if constexpr (Op::kSharesRows) {
      LoadPack(pack.input[i], args.in[i], row, index);
    } else {
      LoadShiftedPack<Op>(pack.input[i], args.in[i], row, index);
    }
  }
  if constexpr (kHasMask<Op>) {
    if (row.seen.mask != nullptr) LoadMask<Op>(pack.mask, row, index);
  }
}

// Replaces what the operation does not see. Without a branch: packs wholly within the band are not
// worth one (H200, float32, 2048 columns, causal, time over that of a copy, 2026-11: 1.12 either
// way).
template <typename Op, bool kAligned>
__device__ void HidePacks(InputPacks<Op>& pack, const RowView<Op, kAligned>& row, int index) {
  using T = typename Op::Storage;
  constexpr int kWords = kMaskWords<Pack<T>::kSize>;
  const int column = row.Column(index);
  uint32_t seen[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    seen[i] = BytesFromTo(row.seen.begin - column - 4 * i, row.seen.end - column - 4 * i);
    if constexpr (kHasMask<Op>) {
      if (row.seen.mask != nullptr) seen[i] &= pack.mask.word[i];
    }
  }
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
    SelectElements(pack.input[i], seen, static_cast<T>(Op::Fill()));
  }
}

// Replaces what does not belong to the row by Op::Fill(), which all storage types can represent.
template <typename Op, bool kAligned>
__device__ void MaskPacks(InputPacks<Op>& pack, const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int index) {
  const auto fill = static_cast<typename Op::Storage>(Op::Fill());
#pragma unroll
  for (int i = 0; i < (Op::kSharesRows ? Op::kInputs : 1); ++i) {
    MaskPack(pack.input[i], args.in[i], row, index, fill);
  }
}

template <typename Op>
__device__ void FillPacks(InputPacks<Op>& pack) {
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) {
#pragma unroll
    for (auto& element : pack.input[i].element) {
      element = static_cast<typename Op::Storage>(Op::Fill());
    }
  }
  if constexpr (kHasMask<Op>) pack.mask = {};
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SOFTMAX_ROW_ARGS_CUH_
