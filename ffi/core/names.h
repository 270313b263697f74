// Enums whose values have names: those of errors, plans and attributes of calls.
//
// Owns: the way between a value and its name. Beside such an enum stands NamesOf(Enum), an array
// with a name for each value in order. Must not know: any enum.
#ifndef JAXKERNELS_CORE_NAMES_H_
#define JAXKERNELS_CORE_NAMES_H_

#include <cstddef>
#include <string_view>

namespace jaxkernels {

template <typename Enum>
constexpr std::string_view NameOf(Enum value) {
  return NamesOf(value)[static_cast<std::size_t>(value)];
}

// False if no value has this name.
template <typename Enum>
constexpr bool ParseName(std::string_view name, Enum* value) {
  std::size_t index = 0;
  for (const std::string_view known : NamesOf(Enum{})) {
    if (known == name) {
      *value = static_cast<Enum>(index);
      return true;
    }
    ++index;
  }
  return false;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_NAMES_H_
