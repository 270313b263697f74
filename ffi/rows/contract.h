// The operands and results of a row operation, each with a role.
//
// Owns: the roles, and the record of one operation. The call parser, plans, the kernels of both
// platforms and Python's primitives, batching, partitioning and derivatives all read it.
// operations.h has the table of operations. Must not know: XLA, CUDA, Python.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace jaxkernels {

// Content of an operand or result. "The elements' shape" is the shape of the first operand.
enum class Role {
  kElements,   // one number per element, in the elements' shape and dtype
  kBroadcast,  // the same dtype; any dimension but the last may be 1. Needs `hides` (a bias)
  kMask,       // bool, shaped like kBroadcast; optional (`has_mask`). Needs `hides` or a label
  kLabel,      // int32, one column per row; negative for none
  kRow,        // `count` numbers per row, in the elements' dtype or compute type
  kScales,     // the temperature of each row, or its temperature and soft cap, in the compute type;
               // they transform the elements on load. Optional
  kColumn,     // one number per column, for all rows, in the elements' dtype or compute type
};
inline constexpr std::string_view kRoleNames[] = {"elements", "broadcast", "mask",  "label",
                                                  "row",      "scales",    "column"};
constexpr const auto& NamesOf(Role) { return kRoleNames; }

struct OperandSpec {
  std::string_view name;
  Role role = Role::kElements;
  int count = 1;  // size of the last dimension; kRow only, a label has 1
};

// The operands or results of an operation, in call order.
class OperandSpecs {
 public:
  constexpr OperandSpecs(std::initializer_list<OperandSpec> specs) {
    for (const OperandSpec& spec : specs) specs_[size_++] = spec;
  }
  constexpr const OperandSpec* begin() const { return specs_; }
  constexpr const OperandSpec* end() const { return specs_ + size_; }
  constexpr std::size_t size() const { return size_; }

  constexpr int CountOf(Role role) const {
    int count = 0;
    for (std::size_t i = 0; i < size_; ++i) count += specs_[i].role == role ? 1 : 0;
    return count;
  }
  // The count of numbers per row in the `index`-th operand of role kRow; 0 if there is none.
  constexpr int RowNumbers(int index) const {
    for (std::size_t i = 0; i < size_; ++i) {
      if (specs_[i].role == Role::kRow && index-- == 0) return specs_[i].count;
    }
    return 0;
  }

 private:
  static constexpr int kMost = 6;
  OperandSpec specs_[kMost] = {};
  std::size_t size_ = 0;
};

void Deny(std::string_view reason);  // undefined; see OperationTraits::Check

struct OperationTraits {
  std::string_view name;
  OperandSpecs operands;
  OperandSpecs results;
  bool finds_max = false;   // needs the maximum of a row before its sums
  bool keeps_term = false;  // the result follows from the summand, as exp(x - max) / sum does
  bool hides = false;       // attention scores: a row can have hidden columns
  int sums = 0;             // number of sums per row; 0: no reduction
  bool counts_max = false;  // except in half types, also counts the maxima
  bool x_if_half = false;   // half types read x instead of y, and sum exp(x - max) first
  bool averages = false;    // the result follows from the means of the terms and from an epsilon

  // Number of inputs that have an element per element of a row.
  constexpr int Inputs() const {
    return operands.CountOf(Role::kElements) + operands.CountOf(Role::kBroadcast);
  }
  constexpr bool HasMask() const { return operands.CountOf(Role::kMask) > 0; }
  constexpr bool SharesRows() const { return operands.CountOf(Role::kBroadcast) == 0; }
  constexpr bool TakesLabel() const { return operands.CountOf(Role::kLabel) > 0; }
  constexpr bool TakesScales() const { return operands.CountOf(Role::kScales) > 0; }
  constexpr bool TakesColumn() const { return operands.CountOf(Role::kColumn) > 0; }
  // Number of row scalars that it reads, from up to two operands.
  constexpr int Takes() const { return operands.RowNumbers(0) + operands.RowNumbers(1); }
  constexpr bool StoresElements() const { return results.CountOf(Role::kElements) > 0; }
  // Number of row scalars that it stores, in one result.
  constexpr int Stores() const { return results.RowNumbers(0); }
  constexpr bool IsPlain() const { return !hides && !TakesLabel(); }

  // Check fails a static_assert, at the line of its reason, if the parser or kernels cannot serve
  // this contract: Deny is not constexpr.
  constexpr void Check() const {
    const int elements = results.CountOf(Role::kElements), rows = results.CountOf(Role::kRow);
    const int most_sums = sums + (counts_max || x_if_half ? 1 : 0);
    if (operands.begin()->role != Role::kElements) Deny("the first operand is kElements");
    if (Inputs() > 2) Deny("at most two inputs");
    if (!hides && !SharesRows()) Deny("only `hides` broadcasts");
    if (HasMask() && IsPlain()) Deny("only `hides` or a label has a mask");
    if (operands.CountOf(Role::kRow) > 2) Deny("at most two operands of row scalars");
    if (operands.CountOf(Role::kLabel) > 1) Deny("at most one label");
    if (operands.CountOf(Role::kColumn) > (hides ? 0 : 1)) Deny("one column; `hides` has none");
    if (elements + rows == 0) Deny("no results");
    if (elements > 1 || rows > 1) Deny("at most one result of elements and one of row scalars");
    if (int(results.size()) != elements + rows) Deny("results are elements or row scalars");
    if (results.size() != 1 && !TakesLabel()) Deny("one result, or a label");
    if (Stores() > 1 && Stores() != sums + 2) Deny("one row scalar, or the residuals of a loss");
    if (Stores() > 1 && !TakesLabel()) Deny("one row scalar, or a label");
    if (most_sums > 2 && !TakesLabel()) Deny("at most two sums, or a label");
    if (averages && (!TakesColumn() || Takes() > 0)) Deny("averages has a column, no row scalars");
    if (keeps_term && operands.CountOf(Role::kElements) > 1) Deny("a kept term, no second input");
    if (keeps_term && TakesColumn()) Deny("a kept term, no column");
  }
};

}  // namespace jaxkernels
