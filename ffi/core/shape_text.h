// Formats shapes for errors.
//
// Owns: the notation, which is Python's. Must not know: XLA, CUDA, Python. Texts are built without
// iostreams: their number formatting crashes if a process holds two copies of the C++ library.
#pragma once

#include <cstddef>
#include <string>

namespace jaxkernels {

// "(2, 3)", "(3,)"; `dims` is a vector of integers or XLA's view of one.
template <typename Dims>
std::string ShapeText(const Dims& dims) {
  std::string text = "(";
  for (std::size_t i = 0; i < dims.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + (dims.size() == 1 ? ",)" : ")");
}

}  // namespace jaxkernels
