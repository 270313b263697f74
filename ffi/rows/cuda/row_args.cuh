// Kernel arguments and the view of a row, which all tiers share. row_packs.cuh loads the packs of a
// row.
#pragma once

#include <cmath>

#include "core/reduce.cuh"
#include "core/row_window.cuh"
#include "rows/call.h"
#include "rows/operations.h"
#include "rows/row_batches.h"

namespace jaxkernels {

// Transforms the logits of a row; -inf stays -inf.
template <typename Op, typename C, int kSize>
__device__ void Scale(const Op& op, C (&value)[kSize][1]) {
#pragma unroll
  for (auto& [x] : value) {
    const C capped = Op::kCaps ? op.scale.Capped(x) : C(0);
    x = Op::kCaps && x != -kInfinity<C> ? capped : RoundedProduct(x, op.scale.factor);
  }
}

// Per-row inputs; defaults if row >= rows.
template <typename Op>
struct GivenRow {
  using C = typename Op::C;

  int64_t cols = 0;
  C scalar[Op::kTakes > 0 ? Op::kTakes : 1] = {};  // or the epsilon, if the operation averages
  int label = -1;                                  // clamped to cols
  C labelled = 0;  // the element at the label, if the operation reduces; NaN if label >= cols
  // Derivative of transformed elements with respect to elements: 1 / temperature, and for the
  // element at the label the factor of a cap, or 0 if a mask hides it.
  C unit = 1, slope = 1;
};

// Values per element that Op's members get: one of each input, and the number of its column.
template <typename Op>
inline constexpr int kValues = Op::kInputs + (Op::kTakesColumn ? 1 : 0);

// Whether the results may have a narrower type than the inputs.
template <typename Op>
inline constexpr bool kMayNarrow =
    std::is_same_v<typename Op::Storage, float> && MayNarrow(TraitsOf(Op::kOperation));

// Whether rows may have a mask.
template <typename Op>
inline constexpr bool kHasMask = !std::is_empty_v<typename Op::MaskWord>;
template <typename Op>
inline constexpr bool kMasksLogits = kHasMask<Op> && Op::kTakesLabel;

template <typename Op>
struct RowArgs {
  using T = typename Op::Storage;
  using C = ComputeType<T>;
  // Scalars per row in the first array of row scalars.
  static constexpr int kTakesFirst = TraitsOf(Op::kOperation).operands.RowNumbers(0);

  const T* in[Op::kInputs];
  void* out;  // of result_dtype
  int64_t rows, cols;
  int kept_packs;  // per input and block, in shared memory or (FewRowsKernel) in registers
  int offset;      // elements of the first pack before the result; `in` and `out` begin with them
  int leaf_turns;  // iterations per leaf; OneReadKernel only
  int branches;    // parts per row, one block each; `stream` only
  int lanes;       // lanes per row; staged rows and `stream` only
  DType result_dtype;
  int staged_rows, row_spacing;  // rows per chunk; distance between concurrent rows
  Op op;
  RowBatches batches;  // block_smem and cluster only
  const int32_t* labels;
  RowScalars scalars_in[2], scalars_out;
  RowScales scales;

  // Loads scalars [kBegin, kEnd) of a row from the array that holds exactly those.
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
  // The label of a row; -1 if row >= rows. Load it before the elements of the row: it arrives with
  // them, and GivenOf, which uses it as an address, need not wait.
  __device__ int LabelOf(int64_t row) const {
    if constexpr (Op::kTakesLabel) {
      if (row < rows) return labels[row];
    }
    return -1;
  }
  // The temperature and soft cap of a row. Load them before the elements of the row.
  __device__ typename Op::Scale ScaleOf(int64_t row) const {
    if constexpr (Op::kTakesScales) {
      if (scales.data != nullptr && row < rows) {
        const auto* const of_rows = static_cast<const C*>(scales.data);
        return typename Op::Scale(of_rows + row * scales.count, Op::kCaps);
      }
    }
    return {};
  }
  // The operation on a row with this scale.
  __device__ auto OpWith(const typename Op::Scale& scale) const
      -> std::conditional_t<Op::kTakesScales, Op, const Op&> {
    if constexpr (Op::kTakesScales) {
      Op of_row = op;
      of_row.scale = scale;
      return of_row;
    } else {
      return op;
    }
  }
  __device__ decltype(auto) OpOf(int64_t row) const { return OpWith(ScaleOf(row)); }
  // Loads the per-row inputs. Call it before the reduction of the sums, which hides the latency.
  // `elements` points to the elements of the row, in global or shared memory; `of_row` is
  // OpOf(row).
  __device__ GivenRow<Op> GivenOf(const Op& of_row, int64_t row, int label,
                                  const T* elements) const {
    GivenRow<Op> given;
    if (row >= rows) return given;
    given.cols = cols;
    if constexpr (Op::kTakesScales) given.unit = of_row.scale.factor;
    if constexpr (Op::kAverages) given.scalar[0] = op.epsilon;
    LoadScalars<0, kTakesFirst>(scalars_in[0], row, given.scalar);
    LoadScalars<kTakesFirst, Op::kTakes>(scalars_in[1], row, given.scalar);
    if constexpr (Op::kTakesLabel) {
      const int count = static_cast<int>(cols);  // it fits: read_call.cc checks
      given.label = min(label, count);
      const int at = min(max(label, 0), count - 1);
      if constexpr (kMasksLogits<Op>) given.slope = op.VisibleOf(row, cols).mask[at];
      if constexpr (Op::kSums == 0) {
        if (Op::kCaps) given.slope = of_row.scale.SlopeAt(Op::Labelled(given.scalar));
      } else {  // loads the element itself: an in-place result may overwrite it later
        const C element = static_cast<C>(elements[at]);
        C value[1][1] = {{given.slope == C(0) ? -kInfinity<C> : element}};
        Scale(of_row, value);
        const C scaled = value[0][0];
        if (Op::kCaps) given.slope = of_row.scale.SlopeAt(scaled);
        given.labelled = label < 0 ? C(0) : label < count ? scaled : C(NAN);
      }
    }
    return given;
  }
  __device__ GivenRow<Op> GivenOf(const Op& of_row, int64_t row, int label) const {
    return GivenOf(of_row, row, label, in[0] + offset + row * cols);
  }
  // Stores the row scalars; does nothing if row >= rows.
  template <int kCount>
  __device__ void StoreScalars(int64_t row, const C (&value)[kCount]) const {
    if (row >= rows) return;
    const auto store = [&](auto* row_scalars) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        row_scalars[i] = static_cast<std::decay_t<decltype(*row_scalars)>>(value[i]);
      }
    };
    if (scalars_out.wide) {
      store(static_cast<C*>(scalars_out.data) + row * kCount);
    } else {
      store(static_cast<T*>(scalars_out.data) + row * kCount);
    }
  }
};

// The window of a row, and its visible columns.
template <typename Op, bool kAligned>
struct RowView : RowWindow<typename Op::Storage, kAligned> {
  using Window = RowWindow<typename Op::Storage, kAligned>;
  using Window::kSize;

  typename Op::VisibleColumns seen;
  int first_seen = 0, end_seen = 0;  // packs that the band covers, also in part
  int cut_begin = 0, cut_end = 0;    // packs of the columns just outside the band

  RowView() = default;
  // The row number `turn` in processing order; empty if turn >= rows.
  __device__ RowView(const RowArgs<Op>& args, int64_t turn) {
    if (turn >= args.rows) return;
    if constexpr (Op::kHides) {
      const auto find = [&](auto index) {
        const auto row = args.op.rows.order.RowAt(index);
        static_cast<Window&>(*this) = Window(row, args.rows, args.cols, args.offset);
        seen = args.op.VisibleOf(row, args.cols);
      };
      args.op.rows.IsShort() ? find(static_cast<uint32_t>(turn)) : find(turn);
      FindBand();
    } else {
      static_cast<Window&>(*this) = Window(turn, args.rows, args.cols, args.offset);
      if constexpr (kHasMask<Op>) seen = args.op.VisibleOf(turn, args.cols);
    }
  }
  __device__ RowView StartAtLine() const {
    RowView view = *this;
    view.Window::StartAtLine();
    if constexpr (Op::kHides) view.FindBand();
    return view;
  }
  // As StartAtLine, restricted to part `part` of `slots` packs.
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
  // The pack that holds column `column` >= 0; negative if it lies in an earlier part.
  __device__ int PackOf(int column) const {
    return static_cast<int>(static_cast<unsigned>(column + this->head) / kSize) + this->lead;
  }
  // Whether pack `index` holds any column of the row within the band.
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
      return kHasMask<Op>;
    }
  }
  // Whether the band begins or ends within pack `index` or at its edge.
  __device__ bool IsCut(int index) const {
    return Op::kHides && (index == cut_begin || index == cut_end);
  }
  // Whether the band covers none of packs [first, first + count).
  __device__ bool IsBlind(int first, int count) const {
    return Op::kHides && (first >= end_seen || first + count <= first_seen);
  }

 private:
  // Finds the band once per row instead of once per pack, so that only packs at its edges need
  // masking. A causal row takes 534 instructions per warp instead of 693.
  // H200 bf16 4096 cols, causal, time over that of a copy (2026-11): per pack 1.34, per row 1.08
  __device__ void FindBand() {
    const auto pack_of = [&](int column) {  // may be -1
      const auto counted = static_cast<unsigned>(column + this->head + kSize) / kSize;
      return static_cast<int>(counted) - 1 + this->lead;
    };
    first_seen = pack_of(seen.begin), end_seen = pack_of(seen.end - 1) + 1;
    if (seen.begin == seen.end) end_seen = first_seen;
    cut_begin = pack_of(seen.begin - 1), cut_end = pack_of(seen.end);
  }
};

}  // namespace jaxkernels
