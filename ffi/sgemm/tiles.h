// The tables of tiles of every rung.
//
// Owns: the sizes of tiles, and the constants derived from them. No other file lists tiles: plans,
// launches and tests iterate over kPipelinedTiles. This file is plain C++, so that plans are made
// without CUDA.
#ifndef JAXKERNELS_SGEMM_TILES_H_
#define JAXKERNELS_SGEMM_TILES_H_

#include <string_view>
#include <utility>

namespace jaxkernels {

// RungTile is the block tile of a rung below `pipelined`.
struct RungTile {
  int block_m, block_n, block_k;
  int thread_m, thread_n;

  constexpr int Threads() const { return block_m / thread_m * (block_n / thread_n); }
};

inline constexpr RungTile kNaiveTile{32, 32, 1, 1, 1};
inline constexpr RungTile kSharedTile{32, 32, 32, 1, 1};     // block_tile
inline constexpr RungTile kRegisterTile{128, 128, 8, 8, 8};  // thread_tile, warp_tile, split_tile
inline constexpr int kRungBlocksPerSm = 2;                   // limited by registers

// Engine is the way of tiles into shared memory: the tensor memory accelerator (TMA), which needs
// rows that start at 16-byte boundaries, or copies of single floats.
enum class Engine { kTma, kFloats };
inline constexpr std::string_view kEngineNames[] = {"tma", "floats"};
constexpr const auto& NamesOf(Engine) { return kEngineNames; }

// PipelinedTile describes a block: `slices` groups of threads compute block_m x block_n elements of
// C. Every group computes the whole tile for its share of each block_k, and the groups' sums are
// added at the end. Slices give more warps when there are few tiles.
struct PipelinedTile {
  int block_m, block_n;
  int thread_m, thread_n;
  int lanes_m;  // lanes of a warp along m; the others lie along n
  int slices;
  int blocks_per_sm;   // that the registers must allow
  int stages;          // of kTma if no operand is transposed
  double efficiency;   // fraction of the FFMA peak that a full SM reaches
  int stagger_cycles;  // start delay of second blocks if sums are short

  constexpr int ThreadsOfSlice() const { return block_m / thread_m * (block_n / thread_n); }
  constexpr int Threads() const { return ThreadsOfSlice() * slices; }
  // AllSlicesAdd tells who adds the sums of the slices: every slice some rows of the thread tile,
  // or the first slice all rows. H200, the first slice and every slice (2026-11):
  // 1024^3, 64 sums of a thread: 51.1 and 52.3 us
  // 256^3, 32 sums: 5.84 and 5.45 us
  constexpr bool AllSlicesAdd() const { return slices > 1 && thread_m * thread_n <= 32; }
  // ReadsAlongK tells whether threads read a K-major A as kTma delivers it, four k at a time,
  // instead of transposing it. This needs registers, which only small sliced tiles have left. H200,
  // 32 x 32 x 4, in a CUDA graph with operands from memory: A transposed; A as delivered with all k
  // of a stage unrolled (2026-11):
  // 256^3: 5.2 and 4.4 us
  // 512^3: 11.6 and 10.1 us
  constexpr bool ReadsAlongK() const { return AllSlicesAdd(); }
};

// Tiles are named block_m x block_n, then x slices.
//
// Efficiencies: H200 (2026-11), 4096^3; the last two by squares of 256 to 512.
//
// The last two tiles have a fourth stage for small products: with few blocks per SM, it keeps one
// more tile of k in flight. H200, 32 x 32 x 4 with A still transposed, 3, 4 and 5 stages (2026-11):
// 256^3: 6.16, 5.85 and 5.84 us
// (64, 512, 1024): 7.48, 6.85 and 6.88 us
// 512^3: 11.8, 11.7 and 11.8 us
//
// The last tile lets products of up to 66 tiles of 32 x 32 use all SMs. With more tiles it is
// slower. H200, 32 x 32 x 4 and 32 x 16 x 4 (2026-11):
// 256^3: 4.4 and 4.0 us
// (256, 512, 512): 7.2 and 7.9 us
//
// The start delay of second blocks is about the time of their stores. H200, 128 x 128, delayed by
// 0, 3000 and 6000 cycles (2026-11):
// (4096, 4096, 64): 77.8, 63.6 and 64.1 us
// 64 x (512, 512, 64): 77.3, 70.0 and 65.6 us
// 512 x (128, 128, 128): 65.3, 61.4 and 60.3 us
inline constexpr PipelinedTile kPipelinedTiles[] = {
    {128, 128, 8, 16, 8, 1, 2, 3, 0.80, 6000},  // large products
    {32, 32, 8, 4, 4, 1, 8, 3, 0.40, 0},        // small products with small k
    {64, 64, 8, 8, 8, 4, 2, 3, 0.68, 0},        // about a thousand rows
    {32, 32, 8, 4, 4, 4, 3, 4, 0.54, 0},        // some hundred rows
    {32, 16, 4, 4, 8, 4, 3, 4, 0.38, 0},        // the smallest products
};
inline constexpr int kPipelinedTileCount = sizeof(kPipelinedTiles) / sizeof(kPipelinedTiles[0]);
inline constexpr int kRepairTile = 0;  // recomputes tiles of the rung `tensor`
using PipelinedTileIndices = std::make_integer_sequence<int, kPipelinedTileCount>;

// IsSound checks the requirements of every tile. The kernel and its stages assert further ones.
constexpr bool IsSound(const PipelinedTile& tile) {
  const int warp_m = tile.lanes_m * tile.thread_m, warp_n = 32 / tile.lanes_m * tile.thread_n;
  return tile.thread_m % 4 == 0 && tile.thread_n % 4 == 0 && 32 % tile.lanes_m == 0 &&
         tile.block_m % warp_m == 0 && tile.block_n % warp_n == 0 && tile.Threads() <= 1024 &&
         tile.stages > 2 &&  // a transposed operand takes one
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

// TransposesA tells whether an A that kTma delivers is transposed. A K-major B always is.
constexpr bool TransposesA(const PipelinedTile& tile, bool a_along_k) {
  return a_along_k && !tile.ReadsAlongK();
}

// PipelinedStages: the k of a stage, and the stages in shared memory. kTma keeps two more tiles of
// each operand that it transposes.
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

// PitchOf returns the floats from one k to the next. A warp that transposes float by float writes 8
// k of 4 lines at once (sliced tiles: 16 k of 2 lines or 32 k of one, with some conflicts). Four
// floats of padding put its 32 addresses (4 * k + line) into 32 banks.
constexpr int PitchOf(int lines, Engine engine, bool along_k) {
  return engine == Engine::kFloats && along_k ? lines + 4 : lines;
}

// SmemBytesOf returns the bytes of shared memory of one block.
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
