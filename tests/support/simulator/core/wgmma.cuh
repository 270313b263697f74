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

// The float32 of each float16, by its bits. Conversions by cuda_fp16.h take a quarter of the time.
inline const std::vector<float> kFloatOf = [] {
  std::vector<float> all;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    all.push_back(__half2float(std::bit_cast<__half>(static_cast<uint16_t>(bits))));
  }
  return all;
}();

// The element of a tile at this offset from a descriptor's address. The swizzle is that of
// addresses.
inline float ElementAt(uint64_t descriptor, int offset) {
  const uint32_t address = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t at = address + offset;
  return kFloatOf[*reinterpret_cast<const uint16_t*>(PointerOf(at ^ (at >> 7 & 7) << 4))];
}

// SumOf computes one sum of a product of 16 k.
inline float SumOf(const float (&a)[16], const float (&b)[16], float sum_before) {
  double terms[17];
  for (int k = 0; k < 16; ++k) terms[k] = double{a[k]} * b[k];
  terms[16] = sum_before;
  double largest = 0, all = 0;
  for (const double term : terms) {
    largest = std::max(largest, std::abs(term));
    all += std::abs(term);
  }
  if (!std::isfinite(all)) return NAN;
  if (largest == 0) return 0;
  // Each term is truncated to 25 bits below the largest, as an H200's errors show.
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 25);
  const double per_unit = 1 / unit;  // exact, for a power of two
  int32_t units = 0;
  for (const double term : terms) units += static_cast<int32_t>(term * per_unit);
  const double sum = units * unit;
  auto found = static_cast<float>(sum);  // truncates
  if (std::abs(found) > std::abs(sum)) found = std::nextafter(found, 0.0f);
  return found;
}

// Compute computes a thread's sums of a product of 16 k, in two rows.
inline void Compute(const simulator::Product& product, std::size_t index) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread % 128 / 32;
  float a[2][16], b[16];
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + half * 8;
    for (int k = 0; k < 16; ++k) {
      if (product.a_in_registers) {
        // PTX ISA, wgmma, fragments of A of m64k16
        const int owner = thread / 4 * 4 + k % 8 / 2, number = k / 8 * 2 + half;
        const uint32_t pair = simulator::products[owner][index].registers[number];
        a[half][k] = kFloatOf[static_cast<uint16_t>(pair >> (k % 2 * 16))];
      } else {
        a[half][k] = ElementAt(product.a, row * 128 + k * 2);
      }
    }
  }
  for (int i = 0; i < product.columns / 4; ++i) {
    const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int offset = product.a_in_registers ? k * 128 + column * 2 : column * 128 + k * 2;
      b[k] = ElementAt(product.b, offset);
    }
    for (int half = 0; half < 2; ++half) {
      float& sum = product.sums[i / 2 * 4 + half * 2 + i % 2];
      sum = SumOf(a[half], b, product.keep ? sum : 0);
    }
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
inline void Multiply(float (&sums)[32], const uint32_t (&a)[4], uint64_t b, bool keep) {
  simulator::products[threadIdx.x].push_back(
      {sums, 64, true, keep, 0, b, {a[0], a[1], a[2], a[3]}});
}

template <int kRegisters>
void GiveRegisters() {}
template <int kRegisters>
void TakeRegisters() {}

}  // namespace jaxkernels
