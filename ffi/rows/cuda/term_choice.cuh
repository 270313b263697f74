// How a kernel computes the terms of a row: CappedTerms where they fit, else one element at a time.
#pragma once

#include "rows/cuda/capped_terms.cuh"

namespace jaxkernels {

// Whether an operation may have CappedTerms.
template <typename Op>
inline constexpr bool kMayShareReciprocals =
    kIsHalf<typename Op::Storage> && Op::kTakesLabel && Op::kCaps;

// Says that each element is transformed by itself.
struct SingleTerms {};

// Whether an operation needs more of a row than its first sum and the count of maxima.
template <typename Op>
__device__ bool MakesAllSums(const Op& op) {
  if constexpr (Op::kTakesLabel) {
    return op.all_sums;
  } else {
    return Op::kSums > 1;
  }
}

// Calls body with CappedTerms if `may_share` and they fit, else with SingleTerms. `largest`: the
// largest element, before it was scaled to `max`. Both branches must forget the packs that they
// read (ForgetPacks): else the compiler widens them for both, before the branch.
template <bool kMayHide = true, typename Op, typename Body>
__device__ void WithTerms(const Op& op, typename Op::C max, typename Op::C largest, bool may_share,
                          const Body& body) {
  if constexpr (kMayShareReciprocals<Op>) {
    using Terms = CappedTerms<typename Op::Storage, kMayHide>;
    if (may_share && Terms::Fits(op.scale, max)) return body(Terms(op.scale, max, largest));
  }
  body(SingleTerms());
}

// As WithTerms, for the results of a row. CappedTerms fit if the results are multiples of the
// terms. They do not fit if the factor is NaN: a row that is left out would get NaN instead of 0.
template <typename Op, typename Row, typename Body>
__device__ void WithTermsOf(const Op& op, const Row& row, const Body& body) {
  if constexpr (kMayShareReciprocals<Op> && Op::kStoresElements) {
    bool may_share = row.constant == 0 && row.factor == row.factor;
    if constexpr (requires { row.slope; }) may_share &= row.slope == 0;
    WithTerms(op, row.max, 0, may_share, body);
  } else {
    body(SingleTerms());
  }
}

}  // namespace jaxkernels
