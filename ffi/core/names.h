// Conversion between enum values and their names in errors, plans and call attributes.
//
// Owns: the look-up in both directions. Each enum defines NamesOf(Enum), an array of the names in
// the order of the values. Must not know: any enum.
#pragma once

#include <cstddef>
#include <string_view>

namespace jaxkernels {

template <typename Enum>
constexpr std::string_view NameOf(Enum value) {
  return NamesOf(value)[static_cast<std::size_t>(value)];
}

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
