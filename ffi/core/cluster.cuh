// Thread block clusters, whose blocks can write into each other's shared memory (compute capability
// 9.0 and later). On older GPUs, and in launches without a cluster attribute, each block is a
// cluster of one.
//
// Owns: the ranks of a cluster, and how its blocks exchange partial results. Must not know: what is
// reduced.
// The intrinsics are the ones that cooperative_groups.h wraps. Including that header doubles a
// file's parse time.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"

// Code compiled for older GPUs must not be launched with clusters; see device_query.cu.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define JK_HAS_CLUSTERS 1
#else
#define JK_HAS_CLUSTERS 0
#endif

namespace jaxkernels {

// More than 8 blocks need an opt-in; no device supports more than 16.
inline constexpr int kMostClusterBlocks = 16;

__device__ inline int ClusterBlocks() {
#if JK_HAS_CLUSTERS
  return static_cast<int>(__clusterSizeInBlocks());
#else
  return 1;
#endif
}

__device__ inline int ClusterRank() {
#if JK_HAS_CLUSTERS
  return static_cast<int>(__clusterRelativeBlockRank());
#else
  return 0;
#endif
}

// The index of this block's cluster within the grid; blockIdx.x without clusters.
// Requires: the cluster size is a power of two.
__device__ inline int ClusterIndex() {
  return static_cast<int>(blockIdx.x >> (31 - __clz(ClusterBlocks())));
}

// Barrier over all threads of the cluster. Their earlier stores to shared memory become visible.
__device__ inline void WaitForCluster() {
#if JK_HAS_CLUSTERS
  if (ClusterBlocks() > 1) {
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    return;
  }
#endif
  __syncthreads();
}

// Orders this thread's earlier reads before the cluster's later accesses.
__device__ inline void FenceReads() {
#if JK_HAS_CLUSTERS
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
}

// Loads from the shared memory of block `rank`, at the address that `from` has in this block.
__device__ inline float LoadFromBlock(const float* from, int rank) {
#if JK_HAS_CLUSTERS
  uint32_t there;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(from)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
#else
  return *from;
#endif
}

// Stores to the shared memory of block `rank`, at the address that `to` has in this block. The
// barrier that lies there at the address of `arrived` counts the bytes. Does not wait.
template <typename Value>
__device__ void StoreToBlock(Value* to, int rank, const Value& value, const Mbarrier& arrived) {
#if JK_HAS_CLUSTERS
  static_assert(sizeof(Value) % sizeof(uint64_t) == 0 && alignof(Value) >= sizeof(uint64_t),
                "it is sent in words of eight bytes");
  const auto of_rank = [&](uint32_t address) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
  };
  uint64_t word[sizeof(Value) / sizeof(uint64_t)];
  memcpy(word, &value, sizeof(Value));
  const uint32_t target = of_rank(SharedAddress(to)), barrier = of_rank(arrived.Address());
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Value) / sizeof(uint64_t)); ++i) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
            target + static_cast<uint32_t>(i * sizeof(uint64_t))),
        "l"(word[i]), "r"(barrier)
        : "memory");
  }
#endif
}

// All-gather of one partial result per block of a cluster; each lane of a warp gets one. An
// mbarrier counts the bytes that arrive. A barrier of the whole cluster would be slower: the
// compiler puts a full memory fence before it, which probably waits for the stores of the last row.
// H200 f32 50256 cols over 4 blocks, of the copy rate (2026-11): counted 0.96, barrier 0.90
// Requires: all threads of the cluster take part, and blockDim.x is a multiple of 32.
template <typename Partial>
class ClusterExchange {
 public:
  struct Scratch {
    alignas(sizeof(uint64_t)) Partial line[2][kMostClusterBlocks];
    uint64_t arrived[2];  // for each line
  };

  // Announces to the other blocks that this one runs. Waits neither for them nor for memory.
  __device__ explicit ClusterExchange(Scratch& scratch) : scratch_(scratch) {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() == 1) return;
    if (threadIdx.x == 0) {
      for (const uint64_t& barrier : scratch.arrived) Mbarrier(&barrier).Init();
      FenceBarriers();
    }
    __cluster_barrier_arrive_relaxed();
#endif
  }

  // Waits until all blocks run: only then may their shared memory be written to. Call it once,
  // before the first AllGather.
  __device__ void WaitForBlocks() const {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() > 1) __cluster_barrier_wait();
#endif
  }

  // Sends this block's partial result to all blocks. Lane l gets the result of block l % 16, or
  // `none` if there is no such block. Two scratch lines alternate. A block reuses a line only after
  // it has received the results of all blocks in the other line, and each block sends those after
  // all its threads have read this line.
  // Requires: several blocks; WaitForBlocks() before the first call; a __syncthreads() since the
  // last call.
  __device__ Partial AllGather(const Partial& own, const Partial& none) {
#if JK_HAS_CLUSTERS
    Partial* const line = scratch_.line[turn_];
    const Mbarrier arrived(&scratch_.arrived[turn_]);
    const int blocks = ClusterBlocks(), block = threadIdx.x % kMostClusterBlocks;
    if (threadIdx.x == 0) arrived.Expect(blocks * sizeof(Partial));
    if (static_cast<int>(threadIdx.x) < blocks) {
      StoreToBlock(&line[ClusterRank()], threadIdx.x, own, arrived);
    }
    arrived.WaitForCluster(parity_);
    parity_ ^= turn_;  // after the second line, both enter their next phase
    turn_ ^= 1;
    return block < blocks ? line[block] : none;
#else
    return none;
#endif
  }

 private:
  Scratch& scratch_;
  int turn_ = 0, parity_ = 0;
};

// Gathers values from the threads of a cluster in its first block, each in a slot of its own. A
// block without a cluster can reuse the inbox; a cluster can use it once.
template <typename Value>
class ClusterInbox {
 public:
  // `count` values will arrive; `values` and `arrived` are in shared memory. Announces to the other
  // blocks that this one runs.
  // Requires: all threads of the cluster take part.
  __device__ ClusterInbox(Value* values, const uint64_t& arrived, int count)
      : values_(values), arrived_(&arrived), count_(count) {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() == 1) return;
    if (Receives()) {
      arrived_.Init();
      FenceBarriers();
    }
    __cluster_barrier_arrive_relaxed();
#endif
  }

  // Waits until all blocks run. Call it once, before the first Send.
  // Requires: all threads of the cluster take part.
  __device__ void WaitForBlocks() const {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() == 1) return;
    __cluster_barrier_wait();
    // Bytes that arrive before Expect count too. racecheck reports a race if no barrier separates
    // the two.
    if (Receives()) arrived_.Expect(count_ * sizeof(Value));
#endif
  }

  // Stores one value; one thread calls it per index.
  __device__ void Send(int index, const Value& value) const {
    if (ClusterBlocks() == 1) {
      values_[index] = value;
    } else {
      StoreToBlock(&values_[index], 0, value, arrived_);
    }
  }

  // Waits until all values have arrived.
  // Requires: all threads of the first block take part.
  __device__ void Wait() const {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() > 1) return arrived_.WaitForCluster(0);
#endif
    __syncthreads();
  }

 private:
  __device__ static bool Receives() { return threadIdx.x == 0 && ClusterRank() == 0; }

  Value* values_;
  Mbarrier arrived_;
  int count_;
};

}  // namespace jaxkernels
