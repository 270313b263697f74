// Numbers of the CPU kernels: the compute type of each storage type (float32 for float16 and
// bfloat16), and conversion between them.
//
// Conversions have no branches, so that the compiler can vectorise the surrounding loops for any
// instruction set. XLA's threads flush denormal numbers to zero, so no intermediate value may be
// denormal.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "core/host_device.h"

namespace jaxkernels {

// Storage of bfloat16 or float16, which a run-time DType tells apart. Kernels compute both in
// float32, so that only loads and stores differ, and one set of kernels serves both.
struct Half {
  uint16_t bits;
};
template <>
struct DTypeOf<Half> : std::integral_constant<DType, DType::kFloat16> {};

template <typename T>
using CpuComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The type of running sums: double for float32, so that a row's sum is nearly exact. Half types do
// not need that precision.
template <typename T>
using CpuSumType = std::conditional_t<std::is_same_v<T, float>, double, CpuComputeType<T>>;

template <typename C>
inline constexpr C kInf = std::numeric_limits<C>::infinity();

template <typename To, typename From>
JK_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

JK_INLINE float WidenBFloat16(uint16_t bits) {
  return BitCast<float>(static_cast<uint32_t>(bits) << 16);
}
JK_INLINE float WidenFloat16(uint16_t bits) {
  // Exponent and fraction move to their places; the exponent's bias grows from 15 to 127.
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t special = magnitude + (224u << 23);  // infinity and NaN: exponent 31 -> 255
  // Denormal: fraction * 2^-24 is the difference of two normal float32 numbers.
  const uint32_t denormal =
      BitCast<uint32_t>(BitCast<float>(magnitude + (113u << 23)) - BitCast<float>(113u << 23));
  const uint32_t finite = magnitude < (1u << 23) ? denormal : normal;
  return BitCast<float>(sign | (magnitude < (31u << 23) ? finite : special));
}

JK_INLINE uint16_t NarrowToBFloat16(float from) {
  const uint32_t bits = BitCast<uint32_t>(from);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
JK_INLINE uint16_t NarrowToFloat16(float from) {
  const uint32_t bits = BitCast<uint32_t>(from);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 1/2 rounds a magnitude below 2^-14 to a multiple of 2^-24, float16's smallest number.
  const uint32_t denormal = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - (126u << 23);
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < (113u << 23) ? denormal : normal;
  // From 65520 on, half way beyond the largest finite float16, everything rounds to infinity.
  return static_cast<uint16_t>(sign | (magnitude < 0x477ff000u ? finite : special));
}

// Widens an element of type `dtype`, or narrows to it.
template <typename C>
JK_INLINE C Widen(C value, DType /*dtype*/) {
  return value;
}
JK_INLINE float Widen(Half value, DType dtype) {
  return dtype == DType::kBFloat16 ? WidenBFloat16(value.bits) : WidenFloat16(value.bits);
}
template <typename C>
JK_INLINE void Narrow(C from, DType /*dtype*/, C* to) {
  *to = from;
}
JK_INLINE void Narrow(float from, DType dtype, Half* to) {
  if (dtype == DType::kBFloat16) {
    to->bits = NarrowToBFloat16(from);
  } else {
    to->bits = NarrowToFloat16(from);
  }
}

}  // namespace jaxkernels
