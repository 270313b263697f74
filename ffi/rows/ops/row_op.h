// Row operations: what each one sums and stores. An operation does not know how rows are loaded,
// reduced and stored: the tiers of rows/cuda and the drivers of rows/cpu do that.
//
// An operation is a struct over an arithmetic A: Cuda<T> of rows/cuda/arithmetic.cuh or Cpu<T> of
// rows/cpu/arithmetic.h, for storage type T. A has the compute type C, exponentials, logarithms and
// quotients, and A::KernelTraits: defaults of members that only its platform needs; they are listed
// there. RowOp takes the constants of an operation from the table of operations.h. An operation
// defines the members it needs:
//   kKeepsTerm whether a kernel may keep the summand instead of the input until the sum is known
//   Fill(i)    the padding value of input i; it is neutral for the maximum and the sums
//   Value      the value whose maximum is taken. With one input, Value is non-decreasing.
//   Reference  maps the row's maximum to the shift that Term and MakeRow get as the maximum
//   Term       the summand of the first sum, from the values of an element and the shift. `in` has
//              one element of each input, then the number of its column
//   SecondTerm the summand of the second sum, from Term, the values, and whether Term is that of
//              the maximum; it may modify the term
//   Rescale    makes the sums relative to a larger maximum, given exp(smaller - larger) and
//              smaller - larger. By default it multiplies all by the exponential. CUDA only
//   Row        the constants of a row; on a CPU all are of type C
//   MakeRow    computes them once per row, from its statistics and per-row inputs
//   Finish     one element of the result, from the values and the constants
//   FinishTerm the same from a kept summand and, on a CPU, the second input, if there is one
// Row::scalars are the results of an operation that stores row scalars only. It has no Finish.
#pragma once

#include "core/host_device.h"
#include "rows/operations.h"

namespace jaxkernels {

// The constants and the defaults of an operation.
template <typename A, Operation kOf>
struct RowOp : A::template KernelTraits<kOf> {
  using Storage = typename A::Storage;
  using C = typename A::C;
  static constexpr Operation kOperation = kOf;
  static constexpr int kInputs = TraitsOf(kOf).Inputs();
  static constexpr bool kUsesMax = UsesMax(TraitsOf(kOf), kDTypeOf<Storage>);
  static constexpr bool kKeepsTerm = TraitsOf(kOf).keeps_term;
  static constexpr int kSums = SumsOf(TraitsOf(kOf), kDTypeOf<Storage>);
  static constexpr bool kTakesLabel = TraitsOf(kOf).TakesLabel();
  static constexpr bool kTakesColumn = TraitsOf(kOf).TakesColumn();
  static constexpr bool kAverages = TraitsOf(kOf).averages;
  static constexpr int kTakes = TraitsOf(kOf).Takes();
  static constexpr bool kStoresElements = TraitsOf(kOf).StoresElements();
  static constexpr int kStores = TraitsOf(kOf).Stores();

  JK_OP static C Fill(int /*input*/) { return C(0); }
  JK_OP static C Reference(C max) { return max; }
};

// Operations that read x. They subtract the maximum, so that no exponential overflows.
template <typename A, Operation kOf>
struct ForwardOp : RowOp<A, kOf> {
  using typename RowOp<A, kOf>::C;
  JK_OP static C Fill(int input) { return input == 0 ? -A::kInfinity : C(0); }
  JK_OP static C Value(const auto& in) { return in[0]; }
  JK_OP static C Term(const auto& in, C max) { return A::ExpDifference(in[0], max); }
};

// Gradients (and tangents) that read the output y and a cotangent (tangent), and need one sum.
template <typename A, Operation kOf>
struct LinearOp : RowOp<A, kOf> {
  using typename RowOp<A, kOf>::C;
  struct Row {
    C sum;
  };
  JK_OP static Row MakeRow(const auto& stats, const auto& /*given*/) { return {C(stats.sum[0])}; }
};

}  // namespace jaxkernels
