// The shared memory of an attention kernel: resident packed tiles, and a ring of slots for others,
// or for halves of their rows. The forward pass keeps queries and streams keys and values.
//
// Owns: barriers and copies. Must not know: what is computed from the tiles.
#pragma once

#include "attention/args.cuh"
#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"
#include "core/wgmma.cuh"

namespace jaxkernels {

inline constexpr int kMaxSlots = 2 * kTilesInSmem;

struct AttentionBarriers {
  uint64_t full[kMaxSlots], empty[kMaxSlots];
  uint64_t resident_full, resident_empty;
};

template <int kSlots>
struct SlotCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// AttentionRing: a slot is full when its bytes have arrived, and empty when all multiplying warps
// have released it. The same holds for the resident tiles.
template <int kDepth, int kResident, int kSlotRows = kBlockRows>
class AttentionRing {
 public:
  using Tile = PackedTile<kDepth>;
  static constexpr int kSlots = (kTilesInSmem - kResident) * kBlockRows / kSlotRows;
  static constexpr int kSlotBytes = Tile::kBytes * kSlotRows / kBlockRows;
  using Cursor = SlotCursor<kSlots>;

  // `smem` starts at a 1024-byte boundary.
  __device__ AttentionRing(AttentionBarriers& barriers, uint32_t smem)
      : barriers_(barriers), smem_(smem) {}

  // Init is called by one thread, before a __syncthreads().
  __device__ void Init() const {
    for (int i = 0; i < kSlots; ++i) {
      Mbarrier(&barriers_.full[i]).Init();
      Mbarrier(&barriers_.empty[i]).Init(kMultiplyingWarps);
    }
    Mbarrier(&barriers_.resident_full).Init();
    Mbarrier(&barriers_.resident_empty).Init(kMultiplyingWarps);
    FenceBarriers();
  }

  __device__ uint32_t Resident(int tile) const { return smem_ + tile * Tile::kBytes; }
  __device__ uint32_t Slot(int slot) const { return Resident(kResident) + slot * kSlotBytes; }

  // These are called by multiplying threads. ReleaseX is called by all lanes of a warp.
  __device__ void WaitForResident(uint32_t parity) const {
    Mbarrier(&barriers_.resident_full).Wait(parity);
  }
  __device__ void ReleaseResident() const { Arrive(&barriers_.resident_empty); }
  // Take returns the next slot, once it is full.
  __device__ int Take(Cursor& cursor) const {
    const int slot = cursor.slot;
    Mbarrier(&barriers_.full[slot]).Wait(cursor.parity);
    cursor.Advance();
    return slot;
  }
  __device__ void Release(int slot) const { Arrive(&barriers_.empty[slot]); }

  // These are called by the one thread that copies.
  __device__ void CopyResident(uint32_t parity, const char* const (&from)[kResident]) const {
    const Mbarrier full(&barriers_.resident_full);
    Mbarrier(&barriers_.resident_empty).Wait(parity ^ 1);
    full.Expect(kResident * Tile::kBytes);
    for (int i = 0; i < kResident; ++i) CopyBytes(Resident(i), from[i], Tile::kBytes, full);
  }
  // CopyTile copies kSlotRows rows from `first_row` on.
  __device__ void CopyTile(Cursor& cursor, const char* from, int first_row = 0) const {
    const Mbarrier full(&barriers_.full[cursor.slot]);
    Mbarrier(&barriers_.empty[cursor.slot]).Wait(cursor.parity ^ 1);
    full.Expect(kSlotBytes);
    from += first_row * kRowBytes;
    constexpr int kCopies = kSlotRows < kBlockRows ? Tile::kParts : 1;
    for (int i = 0; i < kCopies; ++i) {
      CopyBytes(Slot(cursor.slot) + i * kSlotBytes / kCopies, from + i * kPairPartBytes,
                kSlotBytes / kCopies, full);
    }
    cursor.Advance();
  }

 private:
  __device__ static void Arrive(const uint64_t* barrier) {
    __syncwarp();  // other lanes may still wait for what is released
    if (threadIdx.x % 32 == 0) Mbarrier(barrier).Arrive();
  }

  AttentionBarriers& barriers_;
  uint32_t smem_;
};

// Registers per thread (setmaxnreg). 128 x 40 + 256 x 232 of 65536.
inline constexpr int kCopyingRegisters = 40, kMultiplyingRegisters = 232;

// RunWarpgroups is the body of a kernel: one thread copies, two warpgroups multiply.
template <typename Ring, typename Copy, typename Multiply>
__device__ inline void RunWarpgroups(Copy copy, Multiply multiply) {
#if JK_HAS_WGMMA
  extern __shared__ char smem[];
  __shared__ AttentionBarriers barriers;
  const Ring ring(barriers, (SharedAddress(smem) + 1023) & ~1023u);
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  if (threadIdx.x < 128) {
    GiveRegisters<kCopyingRegisters>();
    if (threadIdx.x == 0) copy(ring);
  } else {
    TakeRegisters<kMultiplyingRegisters>();
    multiply(ring);
  }
#endif
}

}  // namespace jaxkernels
