#pragma once
#include "core/shared_address.cuh"

namespace jaxkernels {

class Mbarrier {
 public:
  explicit Mbarrier(const uint64_t* barrier) : key_(barrier) {}
  void Init(int warps = 1) const { simulator::mbarriers[key_] = {warps, warps}; }
  void Wait(uint32_t parity) const {
    while (simulator::mbarriers[key_].phase == parity) simulator::Yield();
  }
  void Expect(uint32_t bytes) const {
    simulator::Mbarrier& barrier = simulator::mbarriers[key_];
    barrier.bytes += bytes;
    --barrier.remaining;
    barrier.Update();
  }
  void Arrive() const { Expect(0); }
  const void* Key() const { return key_; }

 private:
  const void* key_;
};

// No product may be in flight that reads the bytes.
inline void CopyBytes(uint32_t to, const char* from, int bytes, const Mbarrier& barrier) {
  const auto reads = [&](uint64_t descriptor) {
    const uint32_t address = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
    return address >= to && address < to + bytes;
  };
  for (const auto& of_thread : simulator::products) {
    for (const auto& product : of_thread) {
      if (!reads(product.b) && (product.a_in_registers || !reads(product.a))) continue;
      std::puts("a slot was released too early");
      std::fflush(stdout);
      std::_Exit(1);  // from a fiber
    }
  }
  simulator::copies.push_back({PointerOf(to), from, bytes, barrier.Key()});
}
inline void FenceBarriers() {}

}  // namespace jaxkernels
