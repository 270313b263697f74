// The tables of tiles: how the work of a block is cut, on every rung.
//
// Owns: their sizes, and what follows from them alone. A tile stands here and nowhere else: plans,
// launches and tests go through kPipelinedTiles from end to end. Plain C++, so that plans are made
// without CUDA.
#ifndef JAXKERNELS_SGEMM_TILES_H_
#define JAXKERNELS_SGEMM_TILES_H_

#include <string_view>
#include <utility>

namespace jaxkernels {

// A block of the rungs below the pipelined one.
struct RungTile {
  int block_m, block_n, block_k;
  int thread_m, thread_n;

  constexpr int Threads() const { return block_m / thread_m * (block_n / thread_n); }
};

inline constexpr RungTile kNaiveTile{32, 32, 1, 1, 1};
inline constexpr RungTile kSharedTile{32, 32, 32, 1, 1};     // block_tile
inline constexpr RungTile kRegisterTile{128, 128, 8, 8, 8};  // thread_tile, warp_tile, split_tile
inline constexpr int kRungBlocksPerSm = 2;                   // that their registers allow

// How tiles come into shared memory: by the tensor memory accelerator (TMA), which needs operands
// whose lines begin at multiples of 16 bytes, or float by float.
enum class Engine { kTma, kFloats };
inline constexpr std::string_view kEngineNames[] = {"tma", "floats"};
constexpr const auto& NamesOf(Engine) { return kEngineNames; }

// A block computes block_m x block_n elements of C with `slices` groups of threads. Every group
// computes the whole tile for its share of each block_k, and the groups' sums are added at the end:
// more warps, where there are few tiles.
struct PipelinedTile {
  int block_m, block_n;
  int thread_m, thread_n;
  int lanes_m;  // of the 32 lanes of a warp, along m
  int slices;
  int blocks_per_sm;   // that the registers have to allow
  int stages;          // that kTma has where it transposes nothing
  double efficiency;   // fraction of the FFMA peak that a full SM reaches
  int stagger_cycles;  // by which second blocks start late where sums are short

  constexpr int ThreadsOfSlice() const { return block_m / thread_m * (block_n / thread_n); }
  constexpr int Threads() const { return ThreadsOfSlice() * slices; }
  // Whether every slice adds up some rows of the thread tile, or the first one all of them. H200,
  // by the first and by all (2026-11):
  // 1024^3, 64 sums of a thread: 51.1 and 52.3 us
  // 256^3, 32 sums: 5.84 and 5.45 us
  constexpr bool AllSlicesAdd() const { return slices > 1 && thread_m * thread_n <= 32; }
  // Whether threads read an A that lies along k as kTma brings it, four k at a time, instead of
  // transposing it: that takes the registers that small sliced tiles have left. H200, 32 x 32 x 4,
  // transposed, and as it lies and all k of a stage unrolled, in a CUDA graph with operands from
  // memory (2026-11):
  // 256^3: 5.2 and 4.4 us
  // 512^3: 11.6 and 10.1 us
  constexpr bool ReadsAlongK() const { return AllSlicesAdd(); }
};

// Tiles are called by block_m x block_n, and x slices.
//
// Efficiencies: H200 (2026-11), 4096^3; the last two by squares of 256 to 512.
//
// The fourth stage of the last two is for small products: with few blocks an SM, one more tile of k
// on its way. H200, 32 x 32 x 4, which still transposed A, 3, 4 and 5 stages (2026-11):
// 256^3: 6.16, 5.85 and 5.84 us
// (64, 512, 1024): 7.48, 6.85 and 6.88 us
// 512^3: 11.8, 11.7 and 11.8 us
//
// The last tile lets products of up to 66 tiles of 32 x 32 use all SMs; where there are more it is
// slower. H200, 32 x 32 x 4 and 32 x 16 x 4 (2026-11):
// 256^3: 4.4 and 4.0 us
// (256, 512, 512): 7.2 and 7.9 us
//
// Second blocks start late by about the time that storing takes. H200, 128 x 128, by 0, 3000 and
// 6000 cycles (2026-11):
// (4096, 4096, 64): 77.8, 63.6 and 64.1 us
// 64 x (512, 512, 64): 77.3, 70.0 and 65.6 us
// 512 x (128, 128, 128): 65.3, 61.4 and 60.3 us
inline constexpr PipelinedTile kPipelinedTiles[] = {
    {128, 128, 8, 16, 8, 1, 2, 3, 0.80, 6000},  // for large products
    {32, 32, 8, 4, 4, 1, 8, 3, 0.40, 0},        // for small ones of few k
    {64, 64, 8, 8, 8, 4, 2, 3, 0.68, 0},        // for those of about a thousand rows
    {32, 32, 8, 4, 4, 4, 3, 4, 0.54, 0},        // for those of some hundred
    {32, 16, 4, 4, 8, 4, 3, 4, 0.38, 0},        // for the smallest
};
inline constexpr int kPipelinedTileCount = sizeof(kPipelinedTiles) / sizeof(kPipelinedTiles[0]);
inline constexpr int kRepairTile = 0;  // of the tiles that the rung `tensor` leaves to this one
using PipelinedTileIndices = std::make_integer_sequence<int, kPipelinedTileCount>;

// What every tile has to be; the kernel and its stages assert what else they need.
constexpr bool IsSound(const PipelinedTile& tile) {
  const int warp_m = tile.lanes_m * tile.thread_m, warp_n = 32 / tile.lanes_m * tile.thread_n;
  return tile.thread_m % 4 == 0 && tile.thread_n % 4 == 0 && 32 % tile.lanes_m == 0 &&
         tile.block_m % warp_m == 0 && tile.block_n % warp_n == 0 && tile.Threads() <= 1024 &&
         tile.stages > 2 &&  // an operand that is transposed takes one
         tile.efficiency > 0;
}

constexpr bool AreAllSound() {
  for (const PipelinedTile& tile : kPipelinedTiles) {
    if (!IsSound(tile)) return false;
  }
  return true;
}
static_assert(AreAllSound(),
              "threads have quads of a tile's rows and columns, warps whole parts of it");

// Whether an A that kTma brings has to be transposed. (B is where it lies along k.)
constexpr bool TransposesA(const PipelinedTile& tile, bool a_along_k) {
  return a_along_k && !tile.ReadsAlongK();
}

// k of one stage, and how many stages are in shared memory at once: kTma keeps two transposed
// tiles besides of each operand that it transposes.
struct PipelinedStages {
  int block_k;
  int stages;
};

constexpr PipelinedStages StagesOf(const PipelinedTile& tile, Engine engine, bool a_along_k,
                                   bool b_along_k) {
  const bool sliced = tile.slices > 1;
  if (engine == Engine::kFloats) return {sliced ? 32 : 16, 3};
  return {sliced ? 64 : 32, tile.stages - TransposesA(tile, a_along_k) - b_along_k};
}

// Floats from one k to the next. A warp that transposes float by float writes 8 k of 4 lines at
// once (where there are slices 16 of 2 or 32 of one, with some conflicts); four floats of padding
// make its 32 addresses (4 * k + line) fall into 32 banks.
constexpr int PitchOf(int lines, Engine engine, bool along_k) {
  return engine == Engine::kFloats && along_k ? lines + 4 : lines;
}

// Bytes of shared memory of one block.
constexpr int SmemBytesOf(const PipelinedTile& tile, Engine engine, bool a_along_k,
                          bool b_along_k) {
  const PipelinedStages s = StagesOf(tile, engine, a_along_k, b_along_k);
  const int pitch_a = PitchOf(tile.block_m, engine, a_along_k);
  const int pitch_b = PitchOf(tile.block_n, engine, b_along_k);
  int rows = s.stages * (pitch_a + pitch_b);
  if (engine == Engine::kTma) {
    rows += 2 * (TransposesA(tile, a_along_k) ? pitch_a : 0) + 2 * (b_along_k ? pitch_b : 0);
  }
  const int barriers = engine == Engine::kTma ? s.stages * 8 : 0;
  const int staged = rows * s.block_k * 4 + barriers;
  const int exchanged_slices = tile.AllSlicesAdd() ? tile.slices : tile.slices - 1;
  const int exchanged = exchanged_slices * tile.block_m * tile.block_n * 4;
  return staged > exchanged ? staged : exchanged;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_TILES_H_
