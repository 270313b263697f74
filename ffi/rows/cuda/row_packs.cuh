// The packs of a row: how they are loaded and masked. What is computed from them: row_steps.cuh.
#ifndef JAXKERNELS_ROWS_CUDA_ROW_PACKS_CUH_
#define JAXKERNELS_ROWS_CUDA_ROW_PACKS_CUH_

#include "rows/cuda/row_args.cuh"

namespace jaxkernels {

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

// Whether the packs of all inputs lie where those of the result do.
template <typename Op>
__device__ bool AreOnPacks(const RowArgs<Op>& args) {
  uintptr_t address = 0;
#pragma unroll
  for (int i = 0; i < Op::kInputs; ++i) address |= reinterpret_cast<uintptr_t>(args.in[i]);
  return address % kPackBytes == 0;
}

// Both steps, wherever the inputs lie. Nearly all packs are whole, and take plain loads: to put
// them together and to mask them takes longer than to read them.
template <Inputs kInputs = Inputs::kAnywhere, typename Op, bool kAligned, int kCount>
__device__ void TakePacks(InputPacks<Op> (&pack)[kCount], const RowArgs<Op>& args,
                          const RowView<Op, kAligned>& row, int first, int stride) {
  const bool on_packs = kInputs == Inputs::kOnPacks || AreOnPacks(args);
  if (!Op::kHides && on_packs && row.IsWithin(first, first + (kCount - 1) * stride)) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        CopyPack(&pack[u].input[i], args.in[i], row.first + first + u * stride);
      }
    }
  } else {
    LoadPacks<kInputs>(pack, args, row, first, stride);
    MaskAndHidePacks(pack, args, row, first, stride);
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_ROW_PACKS_CUH_
