// A C++ value as a Python value: equal ones have equal hashes, and they can be copied and pickled.
//
// Owns: how FieldsOf of a struct becomes ==, hash and the state of a pickle. Must not know: what
// the fields mean.
#ifndef JAXKERNELS_COMMON_BIND_VALUE_H_
#define JAXKERNELS_COMMON_BIND_VALUE_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <tuple>
#include <type_traits>

namespace jaxkernels {

template <typename Field>
nanobind::object ToPython(const Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    return nanobind::cast(static_cast<int>(field));
  } else {
    return nanobind::cast(field);
  }
}

template <typename Field>
void FromPython(nanobind::handle value, Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    field = static_cast<Field>(nanobind::cast<int>(value));
  } else {
    field = nanobind::cast<Field>(value);
  }
}

template <typename T>
nanobind::tuple StateOf(const T& self) {
  return std::apply([](const auto&... fields) { return nanobind::make_tuple(ToPython(fields)...); },
                    T::FieldsOf(self));
}

template <typename T>
T FromState(const nanobind::tuple& state) {
  T made;
  std::apply(
      [&](auto&... fields) {
        if (state.size() != sizeof...(fields)) {
          throw nanobind::value_error("the pickle was written by another version of jaxkernels");
        }
        size_t next = 0;
        (FromPython(state[next++], fields), ...);
      },
      T::FieldsOf(made));
  return made;
}

// Makes a bound class a value.
template <typename T>
void BindValue(nanobind::class_<T>& bound) {
  bound
      .def(
          "__eq__",
          [](const T& self, nanobind::handle other) {
            return nanobind::isinstance<T>(other) && self == nanobind::cast<const T&>(other);
          },
          nanobind::arg().none())
      .def("__hash__", [](const T& self) { return nanobind::hash(StateOf(self)); })
      .def("__getstate__", &StateOf<T>)
      .def("__setstate__",
           [](T* self, const nanobind::tuple& state) { new (self) T(FromState<T>(state)); });
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_COMMON_BIND_VALUE_H_
