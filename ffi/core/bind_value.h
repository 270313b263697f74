// Exposes a C++ struct to Python as a value class: read-only properties, ==, hash, copy and pickle.
//
// Owns: how a struct's field list (fields.h) becomes a Python class. Must not know: what the fields
// mean.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/fields.h"

namespace jaxkernels {

// The enum value of this name; `what` names the enum in the error.
template <typename Enum>
Enum FromName(const std::string& name, const char* what) {
  Enum value;
  if (ParseName(name, &value)) return value;
  throw nanobind::value_error(("unknown " + std::string(what) + " '" + name + "'").c_str());
}

// An enum is a string as a property, and an integer in hashes and pickles.
template <typename T>
auto AsProperty(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(NameOf(value));
  } else {
    return value;
  }
}

template <typename T>
nanobind::object AsState(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return nanobind::cast(static_cast<int>(value));
  } else {
    return nanobind::cast(value);
  }
}

template <typename T>
void FromState(nanobind::handle state, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(nanobind::cast<int>(state));
  } else {
    value = nanobind::cast<T>(state);
  }
}

template <typename Struct>
nanobind::tuple StateOf(const Struct& self) {
  return std::apply([](const auto&... values) { return nanobind::make_tuple(AsState(values)...); },
                    ValuesOf(self));
}

template <typename Struct>
Struct MadeFromState(const nanobind::tuple& state) {
  Struct made;
  std::apply(
      [&](auto&... values) {
        if (state.size() != sizeof...(values)) {
          throw nanobind::value_error("the pickle was written by another version of jaxkernels");
        }
        std::size_t next = 0;
        (FromState(state[next++], values), ...);
      },
      ValuesOf(made));
  return made;
}

template <typename Struct, std::size_t... kIndices>
void BindFields(nanobind::class_<Struct>& bound, std::index_sequence<kIndices...>) {
  const Struct any;
  const auto fields = Struct::FieldsOf(any);
  (bound.def_prop_ro(
       std::get<kIndices>(fields).name,
       [](const Struct& self) { return AsProperty(std::get<kIndices>(ValuesOf(self))); }),
   ...);
}

template <typename Struct>
nanobind::class_<Struct> BindValue(nanobind::module_& module, const char* doc) {
  nanobind::class_<Struct> bound(module, Struct::kName, doc);
  using Values = decltype(ValuesOf(std::declval<Struct&>()));
  BindFields(bound, std::make_index_sequence<std::tuple_size_v<Values>>());
  bound
      .def(
          "__eq__",
          [](const Struct& self, nanobind::handle other) {
            return nanobind::isinstance<Struct>(other) &&
                   ValuesOf(self) == ValuesOf(nanobind::cast<const Struct&>(other));
          },
          nanobind::arg().none())
      .def("__hash__", [](const Struct& self) { return nanobind::hash(StateOf(self)); })
      .def("__repr__", &TextOf<Struct>)
      .def("__getstate__", &StateOf<Struct>)
      .def("__setstate__", [](Struct* self, const nanobind::tuple& state) {
        new (self) Struct(MadeFromState<Struct>(state));
      });
  return bound;
}

}  // namespace jaxkernels
