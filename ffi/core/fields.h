// Plain values that list their fields once: from the list follow ==, a text, and what Python sees.
//
// Owns: the list's form, == and the text. Such a struct has kName and a static function template
// FieldsOf(self), which gives a tuple with a Field for each of its fields. Must not know: any
// struct, Python (bind_value.h).
#ifndef JAXKERNELS_CORE_FIELDS_H_
#define JAXKERNELS_CORE_FIELDS_H_

#include <string>
#include <tuple>
#include <type_traits>

#include "core/names.h"

namespace jaxkernels {

template <typename T>
struct Field {
  // `shown`: whether a text has it.
  Field(const char* name, T& value, bool shown = true) : name(name), value(value), shown(shown) {}

  const char* name;
  T& value;
  bool shown;
};

// The fields alone, by reference.
template <typename Struct>
auto ValuesOf(Struct& self) {
  return std::apply([](const auto&... fields) { return std::tie(fields.value...); },
                    Struct::FieldsOf(self));
}

template <typename Struct>
bool HasEqualFields(const Struct& a, const Struct& b) {
  return ValuesOf(a) == ValuesOf(b);
}

// As Python spells it.
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

#endif  // JAXKERNELS_CORE_FIELDS_H_
