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

// Calls body with CappedTerms if `may_share`, or with SingleTerms. Both branches must forget the
// packs that they read (ForgetPacks): else the compiler widens them for both, before the branch.
template <bool kMayHide = true, typename Op, typename Body>
__device__ void WithTerms(const Op& op, typename Op::C max, bool may_share, const Body& body) {
  if constexpr (kMayShareReciprocals<Op>) {
    using Terms = CappedTerms<typename Op::Storage, kMayHide>;
    if (may_share && Terms::Fits(op.scale, max)) return body(Terms(op.scale, max));
  }
  body(SingleTerms());
}

// As WithTerms, for the results of a row, which must be multiples of its terms.
template <typename Op, typename Row, typename Body>
__device__ void WithTermsOf(const Op& op, const Row& row, const Body& body) {
  if constexpr (kMayShareReciprocals<Op> && Op::kStoresElements) {
    bool are_multiples = row.constant == 0;
    if constexpr (requires { row.slope; }) are_multiples &= row.slope == 0;
    WithTerms(op, row.max, are_multiples, body);
  } else {
    body(SingleTerms());
  }
}

}  // namespace jaxkernels
