#pragma once
#include "core/shared_address.cuh"

#define JK_HAS_WGMMA 1

namespace jaxkernels {

inline uint64_t DescribeTile(uint32_t address) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 |
         (address & 0x3ffff) >> 4;
}
inline constexpr uint64_t kDescriptorStep = 16 * 2 / 16;
inline constexpr uint64_t kDescriptorStepMN = 16 * 128 / 16;

inline void FenceProducts() {}
inline void CommitProducts() { simulator::products[threadIdx.x].back().ends_group = true; }

// The element of a tile at this offset from a descriptor's address. The swizzle is that of
// addresses.
inline float ElementAt(uint64_t descriptor, int offset) {
  const uint32_t address = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t at = address + offset;
  return __half2float(*reinterpret_cast<const __half*>(PointerOf(at ^ (at >> 7 & 7) << 4)));
}

// Compute computes a thread's sums of a product of 16 k.
inline void Compute(const simulator::Product& product, std::size_t index) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread % 128 / 32;
  for (int i = 0; i < product.columns / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double terms[17];
    for (int k = 0; k < 16; ++k) {
      float a;
      if (product.a_in_registers) {
        // PTX ISA, wgmma, fragments of A of m64k16
        const int owner = thread / 4 * 4 + k % 8 / 2, number = k / 8 * 2 + i / 2 % 2;
        const uint32_t pair = simulator::products[owner][index].registers[number];
        const auto bits = static_cast<uint16_t>(pair >> (k % 2 * 16));
        a = __half2float(std::bit_cast<__half>(bits));
      } else {
        a = ElementAt(product.a, row * 128 + k * 2);
      }
      const int offset = product.a_in_registers ? k * 128 + column * 2 : column * 128 + k * 2;
      terms[k] = double{a} * ElementAt(product.b, offset);
    }
    terms[16] = product.keep ? product.sums[i] : 0;
    // Each term is truncated to 25 bits below the largest, as an H200's errors show.
    double largest = 0, sum = 0;
    for (const double term : terms) largest = std::max(largest, std::abs(term));
    const double unit = largest > 0 ? std::ldexp(1.0, std::ilogb(largest) - 25) : 1;
    for (const double term : terms) sum += std::trunc(term / unit) * unit;
    auto found = static_cast<float>(sum);  // truncates
    if (std::abs(found) > std::abs(sum)) found = std::nextafter(found, 0.0f);
    product.sums[i] = found;
  }
}

template <int kPending>
void WaitForProducts() {
  simulator::SynchronizeWarp();
  auto& all = simulator::products[threadIdx.x];
  int groups = 0;
  for (const auto& product : all) groups += product.ends_group;
  std::size_t count = 0;
  for (; groups > kPending; ++count) {
    Compute(all[count], count);
    groups -= all[count].ends_group;
  }
  simulator::SynchronizeWarp();
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
}

template <int kSums>
void LaunderRegisters(float (&)[kSums]) {}

template <int kSums>
void Multiply(float (&sums)[kSums], uint64_t a, uint64_t b, bool keep) {
  simulator::products[threadIdx.x].push_back({sums, 2 * kSums, false, keep, a, b, {}});
}
inline void Multiply64x64(float (&sums)[32], const uint32_t (&a)[4], uint64_t b, bool keep) {
  simulator::products[threadIdx.x].push_back(
      {sums, 64, true, keep, 0, b, {a[0], a[1], a[2], a[3]}});
}

template <int kRegisters>
void GiveRegisters() {}
template <int kRegisters>
void TakeRegisters() {}

}  // namespace jaxkernels
