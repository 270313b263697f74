// Value structs that list their fields once: ==, the text form and the Python class are derived
// from it.
//
// Owns: the list's form, == and the text. Each struct has kName and a static function template
// FieldsOf(self) that returns a tuple with one Field per member. Must not know: any struct, Python
// (bind_value.h).
#pragma once

#include <string>
#include <tuple>
#include <type_traits>

#include "core/names.h"

namespace jaxkernels {

template <typename T>
struct Field {
  // `shown`: whether TextOf prints it.
  Field(const char* name, T& value, bool shown = true) : name(name), value(value), shown(shown) {}

  const char* name;
  T& value;
  bool shown;
};

template <typename Struct>
auto ValuesOf(Struct& self) {
  return std::apply([](const auto&... fields) { return std::tie(fields.value...); },
                    Struct::FieldsOf(self));
}

template <typename T>
std::string ValueText(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "True" : "False";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "'" + value + "'";
  } else if constexpr (std::is_enum_v<T>) {
    return "'" + std::string(NameOf(value)) + "'";
  } else {
    return std::to_string(value);
  }
}

// "Name(field=value, ...)"
template <typename Struct>
std::string TextOf(const Struct& self) {
  std::string text;
  const auto add = [&](const auto& field) {
    if (!field.shown) return;
    text += (text.empty() ? "" : ", ") + std::string(field.name) + "=" + ValueText(field.value);
  };
  std::apply([&](const auto&... fields) { (add(fields), ...); }, Struct::FieldsOf(self));
  return std::string(Struct::kName) + "(" + text + ")";
}

}  // namespace jaxkernels
