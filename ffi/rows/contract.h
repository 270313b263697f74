// What a call of a row operation carries: its operands and results, each with a role.
//
// Owns: the roles, and the record of one operation. The parser of calls, plans, the kernels of both
// platforms and Python's primitives, batching, partitioning and derivatives read it; the table of
// the operations is in operations.h. Must not know: XLA, CUDA, Python.
#ifndef JAXKERNELS_ROWS_CONTRACT_H_
#define JAXKERNELS_ROWS_CONTRACT_H_

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace jaxkernels {

// What an operand or a result holds. "The elements' shape" is that of the first operand.
enum class Role {
  kElements,   // an element for each element of a row, in the elements' shape and dtype
  kBroadcast,  // the same dtype; dimensions of the elements' shape but the last may be 1
  kMask,       // bool, of a shape as kBroadcast; a call may leave it out (`has_mask`)
  kLabel,      // int32, a column of each row; negative for none
  kRow,        // `count` numbers of each row, in the elements' dtype or the type they compute in
};
inline constexpr std::string_view kRoleNames[] = {"elements", "broadcast", "mask", "label", "row"};
constexpr const auto& NamesOf(Role) { return kRoleNames; }

struct OperandSpec {
  std::string_view name;
  Role role = Role::kElements;
  int count = 1;  // the size of the last dimension; of kLabel and kRow
};

// Operands, or results, in the order of a call.
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
  // The numbers that the `index`-th operand of role kRow has for each row; 0 if there is none.
  constexpr int RowNumbers(int index) const {
    for (std::size_t i = 0; i < size_; ++i) {
      if (specs_[i].role == Role::kRow && index-- == 0) return specs_[i].count;
    }
    return 0;
  }

 private:
  static constexpr int kMost = 4;
  OperandSpec specs_[kMost] = {};
  std::size_t size_ = 0;
};

struct OperationTraits {
  std::string_view name;
  OperandSpecs operands;
  OperandSpecs results;
  bool finds_max = false;   // the maximum of a row before its sums
  bool keeps_term = false;  // the result follows from the summand, as exp(x - max) / sum does
  bool hides = false;       // it works on attention scores, some of which a row may not see
  int sums = 0;             // numbers that a row sums, side by side; none: it reduces nothing
  bool counts_max = false;  // unless of half types it counts the terms of the maximum, too
  int x_if_half = 0;        // number of sums relative to the maximum where half types give x, from
                            // which the kernel sums exp(x - max) first; 0 if it always reads y

  // Arrays with an element for each element of a row.
  constexpr int Inputs() const {
    return operands.CountOf(Role::kElements) + operands.CountOf(Role::kBroadcast);
  }
  constexpr bool HasMask() const { return operands.CountOf(Role::kMask) > 0; }
  // Whether all inputs have one shape.
  constexpr bool SharesRows() const { return operands.CountOf(Role::kBroadcast) == 0; }
  constexpr bool TakesLabel() const { return operands.CountOf(Role::kLabel) > 0; }
  // The numbers of a row that it reads.
  constexpr int Takes() const { return operands.RowNumbers(0) + operands.RowNumbers(1); }
  constexpr bool StoresElements() const { return results.CountOf(Role::kElements) > 0; }
  // The numbers of a row that it stores.
  constexpr int Stores() const { return results.RowNumbers(0); }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CONTRACT_H_
