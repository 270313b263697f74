#pragma once
#include "core/shared_address.cuh"

namespace jaxkernels {

class Mbarrier {
 public:
  explicit Mbarrier(const uint64_t* barrier) : key_(barrier) {}
  void Wait(uint32_t parity) const {
    while (simulator::mbarriers[key_].phase == parity) simulator::Yield();
  }
  const void* Key() const { return key_; }

 protected:
  void Init(int arrivals) const { simulator::mbarriers[key_] = {arrivals, arrivals}; }
  void ArriveWith(int64_t bytes) const {
    simulator::Mbarrier& barrier = simulator::mbarriers[key_];
    barrier.bytes += bytes;
    --barrier.remaining;
    barrier.Update();
  }

 private:
  const void* key_;
};

class ByteBarrier : public Mbarrier {
 public:
  using Mbarrier::Mbarrier;
  void Init() const { Mbarrier::Init(1); }
  void Expect(uint32_t bytes) const { ArriveWith(bytes); }
};

class WarpBarrier : public Mbarrier {
 public:
  using Mbarrier::Mbarrier;
  void Init(int warps) const { Mbarrier::Init(warps); }
  void Arrive() const { ArriveWith(0); }
};

inline void CopyBytes(uint32_t to, const char* from, int bytes, const ByteBarrier& barrier) {
  simulator::copies.push_back({PointerOf(to), from, bytes, barrier.Key()});
}
inline void FenceBarriers() {}

}  // namespace jaxkernels
