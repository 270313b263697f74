// Blocks of a thread block cluster, which can write into each other's shared memory (compute
// capability 9.0 and later; before, and where a launch names no cluster, a block is alone).
//
// Owns: who is in the cluster, and how partial results of its blocks meet. Must not know: what is
// reduced.
#ifndef JAXKERNELS_COMMON_CLUSTER_CUH_
#define JAXKERNELS_COMMON_CLUSTER_CUH_

#include <cooperative_groups.h>

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
  return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#else
  return 1;
#endif
}

// The number of this block within its cluster.
__device__ inline int ClusterRank() {
#if JK_HAS_CLUSTERS
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#else
  return 0;
#endif
}

// Makes what any thread of the cluster wrote before it visible to all of them after it.
__device__ inline void SyncCluster() {
#if JK_HAS_CLUSTERS
  cooperative_groups::this_cluster().sync();
#endif
}

// Stores to where `address` of this block's shared memory lies in that of block `rank`.
template <typename Value>
__device__ void StoreToBlock(Value* address, int rank, const Value& value) {
#if JK_HAS_CLUSTERS
  *cooperative_groups::this_cluster().map_shared_rank(address, rank) = value;
#endif
}

// Partial results of the blocks of a cluster, of which each lane of a warp gets one.
// Requires: all threads of the cluster take part, and blockDim.x is a multiple of 32.
template <typename Partial>
class ClusterExchange {
 public:
  struct Scratch {
    Partial line[2][kMostClusterBlocks];
  };

  // Waits until all blocks run: only then may they be written to.
  __device__ explicit ClusterExchange(Scratch& scratch) : scratch_(scratch) {
    if (ClusterBlocks() > 1) SyncCluster();
  }

  // Sends this block's partial result to all blocks. Lane l gets that of block l % 16, or `none`
  // where there are fewer blocks. Two lines take turns, as in BlockReducer.
  __device__ Partial AllGather(const Partial& own, const Partial& none) {
    Partial* const line = scratch_.line[turn_];
    turn_ ^= 1;
    const int blocks = ClusterBlocks(), block = threadIdx.x % kMostClusterBlocks;
    if (static_cast<int>(threadIdx.x) < blocks)
      StoreToBlock(&line[ClusterRank()], threadIdx.x, own);
    SyncCluster();
    return block < blocks ? line[block] : none;
  }

 private:
  Scratch& scratch_;
  int turn_ = 0;
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_COMMON_CLUSTER_CUH_
