// Steps of a row operation on vectors of kLanes elements: the shifts of terms, the terms and their
// sums, the results.
//
// Owns: what an element becomes, and lane accumulators. row_constants.h has the constants of rows.
// Must not know: the operations (rows/ops), the loops over rows (row_drivers.h), XLA, threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/instruction_sets.h"
#include "core/math_cpu.h"
#include "core/numeric_cpu.h"
#include "rows/cpu/row_constants.h"
#include "rows/cpu/vectors.h"

namespace jaxkernels {

// Whether a driver keeps the terms of a row until its sum is known.
template <typename Op>
inline constexpr bool kKeeps =
    Op::kKeepsTerm || (Op::kTakesLabel && Op::kSums > 0 && Op::kStoresElements);

// The values of an element that Op's members get: its inputs, and the number of its column.
template <typename Op>
inline constexpr int kValues = Op::kInputs + (Op::kTakesColumn ? 1 : 0);
template <typename Op, typename C>
JK_INLINE void LoadValues(const C* first, const C* second, const C* column, int64_t at,
                          C (&value)[kValues<Op>]) {
  value[0] = first[at];
  if constexpr (Op::kInputs == 2) value[1] = second[at];
  if constexpr (Op::kTakesColumn) value[Op::kInputs] = column[at];
}

// Turns the maxima of a group into the shifts of its terms. A row is `near`, and has fixed-shift
// terms, depending on the row alone. Parts have ordinary terms. Returns the number of near rows.
template <typename Op, typename C>
JK_INLINE int MakeShifts(Part part, C* max, C* power, C* of_max, int32_t* near) {
  int near_rows = 0;
#pragma omp simd reduction(+ : near_rows)
  for (int64_t r = 0; r < kLanes; ++r) {
    // The columns of other devices determine the result if all elements are -inf.
    const bool is_hidden = part == Part::kStatistics && max[r] == -kInf<C>;
    max[r] = is_hidden ? C(0) : Op::Reference(max[r]);
    power[r] = 0, of_max[r] = 1, near[r] = 0;
    if constexpr (Op::kHasNear) {
      const bool is_near = part == Part::kWhole && IsNear(max[r]);
      power[r] = PowerOf(max[r]);
      of_max[r] = is_near ? ExpTimesPower(max[r], power[r]) : C(1);
      near[r] = is_near;
      near_rows += is_near;
    }
  }
  return near_rows;
}

// Elements summed in CpuSumType before they are added to a sum in double. The tile is short for
// float64, which has no wider type: there the rounding errors of the second stage are corrected.
template <typename C>
inline constexpr int64_t kTile = std::is_same_v<C, double> ? 128 : 512;

// AddVector accumulates no rounding errors if it gets this for them.
struct NotExact {};
inline constexpr NotExact kNotExact;

// Adds the summands of kLanes elements except the first `skip`: kLanes columns of a row, or one
// column of kLanes rows. kNear, kFar: whether any lane has fixed-shift (near) or ordinary (far)
// terms. kHides: whether elements may be -inf or differences overflow. Stores the terms in `terms`
// if the operation keeps them. `counts`: sums in C (kCounts, and those of MoreTerms). `column`: a
// number per lane, if the operation takes a column.
template <typename Op, bool kNear, bool kFar, bool kSkip, bool kHides, typename C, typename Sum,
          typename Lost>
JK_INLINE void AddVector(const C* first, const C* second, const C* column, int64_t skip,
                         const C* max, const C* power, const int32_t* near, C* terms, Sum& sums,
                         Lost& lost, C (&counts)[4][kLanes]) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    C value[kValues<Op>];
    LoadValues<Op>(first, second, column, l, value);
    const C x = value[0];
    // A near term belongs to the maximum if its element equals it; a far term does if it is 1.
    C term = 0, compared = 0, with = 1;
    if constexpr (kFar) compared = term = Op::Term(value, max[l]);
    if constexpr (kNear) {
      const bool is_near = !kFar || near[l];
      term = is_near ? ExpTimesPower(x, power[l]) : term;
      compared = is_near ? x : compared;
      with = is_near ? max[l] : with;
    }
    if constexpr (kKeeps<Op>) terms[l] = Op::Kept(term, x);
    constexpr bool kExact = std::is_same_v<C, double> && !std::is_same_v<Lost, const NotExact>;
    const auto add = [&](int s, C summand) JK_INLINE_LAMBDA {
      if constexpr (kSkip) summand = l < skip ? C(0) : summand;
      if constexpr (kExact) lost[s][l] += SumError(sums[s][l], summand);
      sums[s][l] += summand;
    };
    const auto count = [&](int s, C summand)
                           JK_INLINE_LAMBDA { counts[s][l] += kSkip && l < skip ? C(0) : summand; };
    if constexpr (Op::kTermSums > 2) {
      const auto more = Op::template MoreTerms<kHides>(term, x, max[l]);
      count(1, more.spread), count(2, more.total), count(3, more.seen);
    }
    if constexpr (Op::kTermSums > 1) {
      const C second_term = Op::SecondTerm(term, value, compared == with);
      if constexpr (Op::kCounts) {
        count(0, second_term);
      } else {
        add(1, second_term);
      }
    }
    add(0, term);
  }
}

// Moves the sums that AddVector accumulated in C.
template <typename Op, typename C, typename Sum>
JK_INLINE void AddCounts(C (&counts)[4][kLanes], Sum (*total)[kLanes]) {
  for (int s = 1; Op::kCounts && s < Op::kTermSums; ++s) {
    const C unit = s == 4 ? C(1 / kTotalScale) : C(1);
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      total[s][l] += unit * counts[s - 1][l], counts[s - 1][l] = 0;
    }
  }
}

template <typename Op, bool kKeep, typename C>
JK_INLINE C FinishElement(const C (&value)[kValues<Op>], const GroupConstants<Op>& rows,
                          int64_t r) {
  const typename Op::Row row = RowAt<Op>(rows, r);
  if constexpr (kKeep) {
    return Op::FinishTerm(value[0], value[Op::kInputs - 1], row);
  } else {
    return Op::Finish(value, row);
  }
}

// Computes kLanes results from elements, or from kept terms in `first` if kKeep. `rows`: the
// constants per lane; `column` as for AddVector.
template <typename Op, bool kKeep, typename C>
JK_INLINE void FinishVector(const C* first, const C* second, const C* column,
                            const GroupConstants<Op>& rows, C* result) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    C value[kValues<Op>];
    LoadValues<Op>(first, second, column, l, value);
    result[l] = FinishElement<Op, kKeep>(value, rows, l);
  }
}

}  // namespace jaxkernels
