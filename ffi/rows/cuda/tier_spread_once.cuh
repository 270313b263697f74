// Tier `spread` in one launch: of many long rows, each branch stays in the shared memory of its
// block until the statistics of its row are known.
//
// Work split: that of tier_spread.cuh. Block b takes branches b, b + gridDim.x, ..., counted over
//   all rows, and a warp a leaf. So the branches of a row are worked on at about the same time.
// Memory: one read and one write per element. While a branch waits for the others of its row, the
//   next one is reduced; with two inputs, one more is on its way. A thread touches only packs that
//   it copied itself.
// Order: that of leaf.cuh. A row gives the same bits as in two launches.
// Requires: all blocks run at once (a cooperative launch), and are no fewer than the branches of a
// row; kOnceTurns packs of a lane in a leaf; inputs on the packs of the result; statistics that are
// absent (awaited.cuh) when the kernel starts. A block goes through the rows in order, has one
// branch of a row at most, and waits for a row only when it has published that branch and all
// before. So what a row waits for never waits for that row.
#ifndef JAXKERNELS_ROWS_CUDA_TIER_SPREAD_ONCE_CUH_
#define JAXKERNELS_ROWS_CUDA_TIER_SPREAD_ONCE_CUH_

#include "core/awaited.cuh"
#include "core/mbarrier.cuh"
#include "rows/cuda/tier_spread.cuh"

namespace jaxkernels {

// The packs of a branch in a stage of shared memory: those of each thread, and the spills of the
// leaves, which the first lanes of each warp have.
template <typename Op, bool kAligned>
class StagedBranch {
 public:
  using P = Pack<typename Op::Storage>;
  static constexpr int kTurns = kOnceTurns;

  // `slots`: of the stage. Past the last branch it is empty.
  __device__ StagedBranch(const RowArgs<Op>& args, unsigned number, P* slots)
      : args_(args),
        branch_(args, number),
        slots_(slots),
        first_(branch_.FirstPack(args, threadIdx.x / kWarpSize)),
        is_whole_(branch_.view.IsWithin(first_, first_ + kTurns * kWarpSize - 1)) {
    first_ += threadIdx.x % kWarpSize;
  }

  // Lets all packs set out.
  __device__ void StartCopies() const {
#pragma unroll
    for (int t = 0; t <= kTurns; ++t) {
      const int index = first_ + t * kWarpSize;
      if (t == kTurns ? HasSpill() && IsCopied(index) : is_whole_ || IsCopied(index)) {
#pragma unroll
        for (int i = 0; i < Op::kInputs; ++i) {
          CopyPackAsync(Slot(t, i),
                        reinterpret_cast<const P*>(args_.in[i]) + branch_.view.first + index);
        }
      }
    }
    CommitCopies();
  }

  // The statistics of the warp's leaf, whose packs have arrived; valid in all lanes.
  __device__ RowStatistics<Op> ReduceLeaf() const {
    InputPacks<Op> pack[kTurns], spill;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) is_whole_ ? Load(t, pack[t]) : LoadMasked(t, true, pack[t]);
    LoadMasked(kTurns, HasSpill(), spill);
    const auto for_packs = [&](bool, auto body) {
#pragma unroll
      for (int t = 0; t < kTurns; ++t) {
        ForgetPacks(pack[t]);
        body(pack[t], t == 0);
      }
    };
    return StatisticsOfLeaf<kAligned>(args_.op, branch_.Shift(), spill, for_packs);
  }

  // Requires: ReduceLeaf() before.
  __device__ void StoreResults(const typename Op::Row& row) const {
#pragma unroll
    for (int t = 0; t <= kTurns; ++t) {
      const int index = first_ + t * kWarpSize;
      // The last leaf's spill is no other branch's.
      if (t == kTurns ? !(IsLastLeaf() && HasSpill() && branch_.view.Has(index))
                      : !is_whole_ && !branch_.view.Has(index)) {
        continue;
      }
      InputPacks<Op> pack;
      typename Op::C result[P::kSize];
      Load(t, pack);
      FinishPacks(args_.op, pack, row, result);
      StorePack(args_.out, branch_.view, index, result);
    }
  }

 private:
  // As in LoadPack: the one pack that the array does not fill is left to MaskPack.
  __device__ bool IsCopied(int index) const {
    return branch_.view.Has(index) && branch_.view.Present(index) == P::kSize;
  }
  __device__ bool HasSpill() const {
    return static_cast<int>(threadIdx.x % kWarpSize) < branch_.Shift().Spill();
  }
  __device__ bool IsLastLeaf() const {
    return branch_.index == args_.branches - 1 && threadIdx.x / kWarpSize == kBranchLeaves - 1;
  }
  __device__ P* Slot(int turn, int input) const {
    const int thread = threadIdx.x, lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int of_turn = turn < kTurns ? thread : warp * kMostSpill + lane;
    return slots_ + input * kOncePacks + turn * kSpreadThreads + of_turn;
  }
  __device__ void Load(int turn, InputPacks<Op>& pack) const {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) CopyPack(&pack.input[i], Slot(turn, i)->element, 0);
  }
  // The same, with what the row does not see of it replaced. A pack that was not copied is put in
  // its slot, for StoreResults.
  __device__ void LoadMasked(int turn, bool has, InputPacks<Op>& pack) const {
    const int index = first_ + turn * kWarpSize;
    FillPacks<Op>(pack);
    if (!has || !branch_.view.Has(index)) return;
    Load(turn, pack);
    MaskPacks<Op>(pack, args_, branch_.view, index);
    if (IsCopied(index)) return;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) *Slot(turn, i) = pack.input[i];
  }

  const RowArgs<Op>& args_;
  Branch<Op, kAligned> branch_;
  P* slots_;
  int first_;      // of the thread
  bool is_whole_;  // whether all packs of the warp lie within the row
};

template <typename Op, bool kAligned>
__global__ void __maxnreg__(OnceRegisters(Op::kOperation))
    SpreadOnceKernel(RowArgs<Op> args, typename Op::Found* statistics) {
  using Found = typename Op::Found;
  using P = Pack<typename Op::Storage>;
  constexpr bool kPublishesEarly = PublishesEarly(Op::kOperation);
  constexpr int kStages = OnceStages(Op::kOperation), kStagePacks = kOncePacks * Op::kInputs;
  extern __shared__ __align__(kPackBytes) unsigned char once_smem[];
  // Double-buffered: a copy is written again two turns later, which every warp reaches only through
  // the barrier of the turn between.
  __shared__ Found leaves[2][kBranchLeaves], of_row[2];
  __shared__ uint64_t reduced_barrier;
  P* const slots = reinterpret_cast<P*>(once_smem);
  Found* const of_branches = reinterpret_cast<Found*>(slots + kStages * kStagePacks);
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const unsigned step = gridDim.x, count = static_cast<unsigned>(args.rows * args.branches);
  const unsigned own = (count - blockIdx.x + step - 1) / step;
  const auto number_of = [&](unsigned n) { return blockIdx.x + n * step; };  // of its branch n
  const auto staged = [&](unsigned n) {
    return StagedBranch<Op, kAligned>(args, number_of(n), slots + n % kStages * kStagePacks);
  };

  const WarpBarrier reduced(&reduced_barrier);  // all leaves of a branch
  if constexpr (kPublishesEarly) {
    if (threadIdx.x == 0) reduced.Init(kBranchLeaves);
    __syncthreads();
  }

#pragma unroll 1
  for (unsigned n = 0; n < kStages; ++n) staged(n).StartCopies();
  // In each turn a branch is reduced, and then the results of the one before are stored.
#pragma unroll 1
  for (unsigned n = 0; n <= own; ++n) {
    const bool reduces = n < own, stores = n > 0;
    const auto publish = [&] {
      const auto of_branch = StatisticsOfLeaves<Op>(leaves[n % 2], kBranchLeaves);
      if (lane == 0) StoreAwaited<Found>(&statistics[number_of(n)], of_branch);
    };

    // Load.
    WaitForCopiesBut<kStages - 2>();

    // Reduce.
    if (reduces) {
      const auto of_leaf = staged(n).ReduceLeaf();
      if (lane == 0) leaves[n % 2][warp] = of_leaf;
      if constexpr (kPublishesEarly) {
        if (lane == 0) reduced.Arrive();
        if (warp == 0) {
          reduced.Wait(n % 2);
          publish();
        }
      }
    }
    const int64_t row = number_of(n - 1) / static_cast<unsigned>(args.branches);
    if (warp == kBranchLeaves - 1 && stores) {
      LoadAwaited<4>(of_branches, statistics + row * args.branches, args.branches);
      __syncwarp();
      const auto found = StatisticsOfLeaves<Op>(of_branches, args.branches);
      if (lane == 0) of_row[n % 2] = found;
    }
    const GivenRow<Op> given = args.GivenOf(stores ? row : args.rows, -1);
    __syncthreads();
    if (!kPublishesEarly && warp == 0 && reduces) publish();

    // Store.
    if (!stores) continue;
    Found found = of_row[n % 2];
    if constexpr (Op::kUsesMax) found.max = Op::Reference(found.max);
    staged(n - 1).StoreResults(RowOf<Op>(found, given));
    staged(n - 1 + kStages).StartCopies();
  }
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_CUDA_TIER_SPREAD_ONCE_CUH_
