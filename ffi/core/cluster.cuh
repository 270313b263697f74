// Blocks of a thread block cluster, which can write into each other's shared memory (compute
// capability 9.0 and later; before, and where a launch names no cluster, a block is alone).
//
// Owns: who is in the cluster, and how partial results of its blocks meet. Must not know: what is
// reduced.
// The intrinsics are those that cooperative_groups.h wraps. With that header a file takes twice as
// long to parse.
#ifndef JAXKERNELS_CORE_CLUSTER_CUH_
#define JAXKERNELS_CORE_CLUSTER_CUH_

#include <cstdint>
#include <cstring>

#include "core/mbarrier.cuh"
#include "core/shared_address.cuh"

// Code that is compiled for older GPUs must not be launched with clusters, see device_query.cu.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define JK_HAS_CLUSTERS 1
#else
#define JK_HAS_CLUSTERS 0
#endif

namespace jaxkernels {

// More than 8 blocks must be asked for; no device takes more than 16.
inline constexpr int kMostClusterBlocks = 16;

__device__ inline int ClusterBlocks() {
#if JK_HAS_CLUSTERS
  return static_cast<int>(__clusterSizeInBlocks());
#else
  return 1;
#endif
}

// The number of this block within its cluster.
__device__ inline int ClusterRank() {
#if JK_HAS_CLUSTERS
  return static_cast<int>(__clusterRelativeBlockRank());
#else
  return 0;
#endif
}

// The number of this block's cluster within the grid; that of the block, if it is alone.
// Requires: the blocks of a cluster are a power of two.
__device__ inline int ClusterIndex() {
  return static_cast<int>(blockIdx.x >> (31 - __clz(ClusterBlocks())));
}

// Until all threads of the cluster are here; what they have stored before in shared memory is seen.
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

// What this thread has read of memory stays before what the cluster does from now on.
__device__ inline void FenceReads() {
#if JK_HAS_CLUSTERS
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
}

// What lies in the shared memory of block `rank` where `from` lies in this block's.
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

// Stores to where `to` of this block's shared memory lies in that of block `rank`, whose barrier at
// the place of `arrived` counts the bytes. Returns at once.
template <typename Value>
__device__ void StoreToBlock(Value* to, int rank, const Value& value, const ByteBarrier& arrived) {
#if JK_HAS_CLUSTERS
  static_assert(sizeof(Value) % sizeof(uint64_t) == 0, "it is sent in words of eight bytes");
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

// Partial results of the blocks of a cluster, of which each lane of a warp gets one. Their bytes
// are counted where they arrive, instead of a barrier of the whole cluster: before that the
// compiler puts a fence of all memory, which probably waits for the stores of the last row.
// H200 f32 50256 cols over 4 blocks, of the copy rate (2026-11): counted 0.96, barrier 0.90
// Requires: all threads of the cluster take part, and blockDim.x is a multiple of 32.
template <typename Partial>
class ClusterExchange {
 public:
  struct Scratch {
    alignas(sizeof(uint64_t)) Partial line[2][kMostClusterBlocks];
    uint64_t arrived[2];  // for each line
  };

  // Tells the other blocks that this one runs, and waits neither for them nor for memory.
  __device__ explicit ClusterExchange(Scratch& scratch) : scratch_(scratch) {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() == 1) return;
    if (threadIdx.x == 0) {
      for (const uint64_t& barrier : scratch.arrived) ByteBarrier(&barrier).Init();
      FenceBarriers();
    }
    __cluster_barrier_arrive_relaxed();
#endif
  }

  // Once, before the first AllGather: until all blocks run. Only then may they be written to.
  __device__ void WaitForBlocks() const {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() > 1) __cluster_barrier_wait();
#endif
  }

  // Sends this block's partial result to all blocks. Lane l gets that of block l % 16, or `none`
  // where there are fewer blocks. Two lines take turns: a block writes a line again only after it
  // has got the results of all blocks in the other one, which each sent when all its threads had
  // read this one.
  // Requires: several blocks, WaitForBlocks() before the first, and a __syncthreads() since the
  // last one.
  __device__ Partial AllGather(const Partial& own, const Partial& none) {
#if JK_HAS_CLUSTERS
    Partial* const line = scratch_.line[turn_];
    const ByteBarrier arrived(&scratch_.arrived[turn_]);
    const int blocks = ClusterBlocks(), block = threadIdx.x % kMostClusterBlocks;
    if (threadIdx.x == 0) arrived.Expect(blocks * sizeof(Partial));
    if (static_cast<int>(threadIdx.x) < blocks) {
      StoreToBlock(&line[ClusterRank()], threadIdx.x, own, arrived);
    }
    arrived.WaitForCluster(parity_);
    parity_ ^= turn_;
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

// Values that the threads of a cluster send to its first block, each to a place of its own. A block
// that is alone sends to itself, any number of times; a cluster does so once.
template <typename Value>
class ClusterInbox {
 public:
  // `count` values are to come; `arrived` is in shared memory, as they are. Tells the other blocks
  // that this one runs.
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

  // Once, before the first Send: until all blocks run.
  // Requires: all threads of the cluster take part.
  __device__ void WaitForBlocks() const {
#if JK_HAS_CLUSTERS
    if (ClusterBlocks() == 1) return;
    __cluster_barrier_wait();
    // Bytes that arrive before they are expected count too. racecheck takes the two for a race
    // where no barrier is between them.
    if (Receives()) arrived_.Expect(count_ * sizeof(Value));
#endif
  }

  // By one thread for each index.
  __device__ void Send(int index, const Value& value) const {
    if (ClusterBlocks() == 1) {
      values_[index] = value;
    } else {
      StoreToBlock(&values_[index], 0, value, arrived_);
    }
  }

  // Until all values are there.
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
  ByteBarrier arrived_;
  int count_;
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_CLUSTER_CUH_
