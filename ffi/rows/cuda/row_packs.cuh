// Loads and masks the packs of a row. row_steps.cuh computes with them.
#pragma once

#include "rows/cuda/row_masks.cuh"

namespace jaxkernels {

// The padding value of input `i`.
template <typename Op>
__device__ typename Op::Storage FillOf(int i) {
  return static_cast<typename Op::Storage>(Op::Fill(i));
}

// One pack of each input, its mask, and the place of its columns. Their numbers are loaded where
// they are used: holding them across a reduction would take several times the registers.
template <typename Op>
struct InputPacks {
  Pack<typename Op::Storage> input[Op::kInputs];
  typename Op::MaskWord mask;
  typename Op::ColumnPlace column;
};

// Finds the column of pack `index`, which may lie outside of the row: its numbers are 0 there.
template <typename Op, bool kAligned>
__device__ void PlaceColumn(InputPacks<Op>& pack, const RowView<Op, kAligned>& row, int index) {
  if constexpr (Op::kTakesColumn) pack.column = {row.Column(index), kAligned};
}

// Loads a pack of an input whose rows have other offsets than those of the first input. Unaligned
// rows have another alignment there, so their elements are gathered.
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

// Copies such a pack to shared memory; asynchronously if it is aligned.
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

// Loads the masks of kCount packs, from `first` on and `stride` apart.
template <typename Op, bool kAligned, int kCount>
__device__ void LoadMasks(InputPacks<Op> (&pack)[kCount], const RowView<Op, kAligned>& row,
                          int first, int stride) {
  if constexpr (kHasMask<Op>) {
    if (!row.IsMasked()) return;
    uint32_t left = 0;
    const auto load_all = [&](bool on_packs) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        const int index = first + u * stride;
        if (row.Sees(index) && !LoadInnerMask(pack[u].mask, row, index, on_packs)) left |= 1u << u;
      }
    };
    IsMaskOnPacks(row) ? load_all(true) : load_all(false);  // one test for all
    if (left == 0) return;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if ((left >> u & 1) != 0) LoadEdgeMask<Op>(pack[u].mask, row, first + u * stride);
    }
  }
}

// Loads one pack of each input.
// Requires: row.Sees(index).
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

// Replaces the hidden elements of a pack. Most packs lie wholly within the band, or wholly outside
// and are filled already.
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

// Replaces elements outside the row by Op::Fill, which all storage types can represent.
// Requires: packs outside the band are already filled.
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

// Loads kCount packs of a row, from `first` on and `stride` apart. All loads are issued before the
// first use.
template <Inputs kInputs, typename Op, bool kAligned, int kCount>
__device__ void LoadPacks(InputPacks<Op> (&pack)[kCount], const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int first, int stride) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const int index = first + u * stride;
    FillPacks<Op>(pack[u]);
    PlaceColumn(pack[u], row, index);
    if (row.Sees(index)) LoadInputs<kInputs>(pack[u], args, row, index);
  }
  LoadMasks(pack, row, first, stride);
}

// Replaces elements of these packs that are hidden or lie outside the row.
template <typename Op, bool kAligned, int kCount>
__device__ void MaskAndHidePacks(InputPacks<Op> (&pack)[kCount], const RowArgs<Op>& args,
                                 const RowView<Op, kAligned>& row, int first, int stride) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    MaskPacks<Op>(pack[u], args, row, first + u * stride);
    HidePacks<Op>(pack[u], row, first + u * stride);
  }
}

// Whether all inputs are aligned like the result.
template <typename Op>
__device__ bool AreOnPacks(const RowArgs<Op>& args) {
  uintptr_t address = 0;
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) address |= reinterpret_cast<uintptr_t>(args.in[i]);
  return address % kPackBytes == 0;
}

// Loads and masks packs of inputs with any alignment. Most packs are whole and take plain loads:
// gathering and masking take longer than reading.
template <Inputs kInputs = Inputs::kAnywhere, typename Op, bool kAligned, int kCount>
__device__ void TakePacks(InputPacks<Op> (&pack)[kCount], const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int first, int stride) {
  const bool on_packs = kInputs == Inputs::kOnPacks || AreOnPacks(args);
  bool has_words = true;
  if constexpr (kHasMask<Op>) has_words = IsMaskOnPacks(row);
  if (!Op::kHides && on_packs && has_words && row.IsWithin(first, first + (kCount - 1) * stride)) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      PlaceColumn(pack[u], row, first + u * stride);
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        const int64_t at = row.first + first + u * stride;
        if constexpr (kMasksLogits<Op>) {  // leaves the cache to a shared mask
          StreamPack(&pack[u].input[i], args.in[i], at);
        } else {
          CopyPack(&pack[u].input[i], args.in[i], at);
        }
      }
    }
    if constexpr (kHasMask<Op>) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) LoadMaskWord<Op>(pack[u].mask, row, first + u * stride);
#pragma unroll
      for (int u = 0; u < kCount; ++u) HidePacks<Op>(pack[u], row, first + u * stride);
    }
  } else {
    LoadPacks<kInputs>(pack, args, row, first, stride);
    MaskAndHidePacks(pack, args, row, first, stride);
  }
}

}  // namespace jaxkernels
