// The tables of tiles of every rung, and the forms of thin products.
//
// Owns: the sizes of tiles, and the constants derived from them. No other file lists tiles: plans,
// launches and tests iterate over kPipelinedTiles and kSmallKTiles. This file is plain C++, so that
// plans are made without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "core/host_device.h"

namespace jaxkernels {

struct RungTile {
  int block_m, block_n, block_k;
  int thread_m, thread_n;
  int blocks_per_sm = 2;  // limited by registers

  constexpr int Threads() const { return block_m / thread_m * (block_n / thread_n); }
};

inline constexpr RungTile kNaiveTile{32, 32, 1, 1, 1};
inline constexpr RungTile kSharedTile{32, 32, 32, 1, 1};     // block_tile
inline constexpr RungTile kRegisterTile{128, 128, 8, 8, 8};  // thread_tile, warp_tile, split_tile

// Engine is how tiles get into shared memory: by the tensor memory accelerator (TMA), which needs
// rows that start at 16-byte boundaries, or by copies of single floats.
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
  // AllSlicesAdd tells whether every slice adds the sums of some rows of the thread tile. Otherwise
  // the first slice adds those of all rows. H200, the first slice and every slice (2026-11):
  // 1024^3, 64 sums of a thread: 51.1 and 52.3 us
  // 256^3, 32 sums: 5.84 and 5.45 us
  constexpr bool AllSlicesAdd() const { return slices > 1 && thread_m * thread_n <= 32; }
  // ReadsKMajor tells whether threads read a K-major A as kTma delivers it, four k at a time,
  // instead of transposing it. This needs registers, which only small sliced tiles have left. H200,
  // 32 x 32 x 4, in a CUDA graph with operands from memory: A transposed; A as delivered with all k
  // of a stage unrolled (2026-11):
  // 256^3: 5.2 and 4.4 us
  // 512^3: 11.6 and 10.1 us
  constexpr bool ReadsKMajor() const { return AllSlicesAdd(); }
};

// Tiles are named block_m x block_n, then x slices.
//
// Efficiencies: H200 (2026-11), 4096^3; the last two by squares of 256 to 512.
//
// The last two tiles have a fourth stage for small products: with few blocks per SM, it keeps one
// more tile of k in flight. H200, 32 x 32 x 4 with A still transposed, 3, 4 and 5 stages (2026-11):
// 256^3: 6.16, 5.85 and 5.84 us
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
         tile.stages > 2 &&  // each transposed operand takes one
         tile.efficiency > 0;
}

static_assert(std::all_of(std::begin(kPipelinedTiles), std::end(kPipelinedTiles), IsSound),
              "threads have quads of a tile's rows and columns, warps whole parts of it");

// TransposesA tells whether an A that kTma delivers is transposed. A K-major B always is.
constexpr bool TransposesA(const PipelinedTile& tile, bool a_k_major) {
  return a_k_major && !tile.ReadsKMajor();
}

// PipelinedStages: the k of a stage, and the stages in shared memory. kTma keeps two more tiles of
// each operand that it transposes.
struct PipelinedStages {
  int block_k;
  int stages;
};

constexpr PipelinedStages StagesOf(const PipelinedTile& tile, Engine engine, bool a_k_major,
                                   bool b_k_major) {
  const bool sliced = tile.slices > 1;
  if (engine == Engine::kFloats) return {sliced ? 32 : 16, 3};
  return {sliced ? 64 : 32, tile.stages - TransposesA(tile, a_k_major) - b_k_major};
}

// PitchOf returns the floats from one k to the next. A warp that transposes float by float writes 8
// k of 4 lines at once (sliced tiles: 16 k of 2 lines or 32 k of one, with some conflicts). Four
// floats of padding put its 32 addresses (4 * k + line) into 32 banks.
constexpr int PitchOf(int lines, Engine engine, bool k_major) {
  return engine == Engine::kFloats && k_major ? lines + 4 : lines;
}

constexpr int SmemBytesOf(const PipelinedTile& tile, Engine engine, bool a_k_major,
                          bool b_k_major) {
  const PipelinedStages s = StagesOf(tile, engine, a_k_major, b_k_major);
  const int pitch_a = PitchOf(tile.block_m, engine, a_k_major);
  const int pitch_b = PitchOf(tile.block_n, engine, b_k_major);
  int rows = s.stages * (pitch_a + pitch_b);
  if (engine == Engine::kTma) {
    rows += 2 * (TransposesA(tile, a_k_major) ? pitch_a : 0) + 2 * (b_k_major ? pitch_b : 0);
  }
  const int barriers = engine == Engine::kTma ? s.stages * 8 : 0;
  const int staged = rows * s.block_k * 4 + barriers;
  const int exchanged_slices = tile.AllSlicesAdd() ? tile.slices : tile.slices - 1;
  const int exchanged = exchanged_slices * tile.block_m * tile.block_n * 4;
  return staged > exchanged ? staged : exchanged;
}

// ThinForm tells which dimension is small. kKMajor and kMNMajor: one side has few lines, and the
// long side is K-major or MN-major. kSmallK: k is small. Their names are public in Python and stay
// as released.
enum class ThinForm { kNone, kKMajor, kMNMajor, kSmallK };
inline constexpr std::string_view kThinFormNames[] = {"none", "along_k", "across_k", "shallow"};
constexpr const auto& NamesOf(ThinForm) { return kThinFormNames; }

inline constexpr int kThinThreads = 256;
// Lines of the short side, and those if the long side is K-major.
inline constexpr int kThinMaxShortLines = 8, kThinMaxShortLinesKMajor = 4;

// ThinShortLinesOf returns the short-side lines that a kernel is compiled for. Missing lines are
// zero.
constexpr int ThinShortLinesOf(int64_t lines) { return lines > 4 ? 8 : lines > 1 ? 4 : 1; }
// ThinBlocksPerSm: limited by registers. A third block with eight lines would spill.
constexpr int ThinBlocksPerSm(int short_lines) { return short_lines == 8 ? 2 : 3; }

// kKMajor: a warp sums kKMajorWarpLines lines at a time, with its lanes along k. A block makes 1 to
// kKMajorMaxIterations such iterations.
inline constexpr int kKMajorWarpLines = 4;
inline constexpr int kKMajorStepK = 128;  // k of a warp: four per lane
inline constexpr int kKMajorSlices = 32;  // lanes of a warp
inline constexpr int kKMajorIterationLines = kThinThreads / 32 * kKMajorWarpLines;
inline constexpr int kKMajorMaxIterations = 8;

inline constexpr int kMNMajorThreadLines = 4;
inline constexpr int kMNMajorMaxLanes = 64;  // threads side by side

// kSmallK: a thread has `rows` x `columns` sums of a tile, and `lanes` threads side by side share
// rows. A block of W warps has a tile of W * RowsOfWarp() rows by Columns() columns.
struct SmallKTile {
  int lanes, rows, columns;
  int blocks_per_sm;  // blocks of kSmallKMaxThreads that the registers must allow
  int least_threads;  // of a block; a power of two
  // Fitted rates of a full SM with a K-major and with an MN-major A; 1 is 128 FFMA a cycle of the
  // model.
  double efficiency, efficiency_mn_major;

  constexpr int RowLanes() const { return 32 / lanes; }
  constexpr int RowsOfWarp() const { return rows * RowLanes(); }
  constexpr int Columns() const { return lanes * columns; }
};

// The first three tiles are for more than 32 columns, the third for long rows of C. The fourth is
// for small products. The others are for few columns; the fifth is also for somewhat more columns
// than a multiple of 64. With an MN-major A the fifth gains nothing. With the others' factor of
// 1.19 it would be chosen for (53608, 160, 64) TN, and took 46.2 us where the first took 44.2
// (H100, 2026-11).
inline constexpr SmallKTile kSmallKTiles[] = {
    {8, 8, 8, 4, 128, 0.80, 0.95}, {8, 4, 8, 6, 32, 0.79, 0.94}, {16, 4, 8, 6, 32, 0.72, 0.86},
    {16, 4, 4, 8, 32, 0.80, 0.95}, {4, 4, 8, 6, 32, 0.74, 0.74}, {4, 4, 4, 8, 32, 0.96, 1.14},
    {2, 4, 4, 8, 32, 1.00, 1.19},  {1, 2, 4, 8, 32, 1.00, 1.19},
};
inline constexpr int kSmallKTileCount = sizeof(kSmallKTiles) / sizeof(kSmallKTiles[0]);
// Minimum columns of a tile, unless C has fewer. us with 64 and with 32 (H100, 2026-11):
// (53608, 96, 64) 30.6 26.1
// (53608, 129, 64) 48.0 42.7
// (53608, 160, 64) 47.7 41.4
inline constexpr int kSmallKColumns = 32;
inline constexpr int kSmallKMaxThreads = 128;

// k of a stage. With 32, a stage takes whole 128 bytes of each line of a K-major A. (65536, 64, 64)
// took 20.8 us with 16 and 19.8 with 32, but TN 18.4 and 19.8 (H200, 2026-11).
JK_HOST_DEVICE constexpr int SmallKStageDepth(bool a_k_major) { return a_k_major ? 32 : 16; }
// Maximum k in shared memory at once, which fills it. Deeper products reuse the stages.
inline constexpr int kSmallKMaxStagedK = 64;

// SmallKPitchB returns the floats from one k of B to the next. It puts the 4 columns by 8 k that a
// warp stores at once into different banks.
JK_HOST_DEVICE constexpr int SmallKPitchB(int columns) { return columns + 4; }
// SmallKSmemBytes counts stages only: sums that are not stored in packs reuse their memory.
constexpr int SmallKSmemBytes(const SmallKTile& tile, int threads, int64_t k, bool a_k_major) {
  const int rows = threads / 32 * tile.RowsOfWarp(), depth = SmallKStageDepth(a_k_major);
  const int64_t whole = (k + depth - 1) / depth * depth;
  const int staged = whole < kSmallKMaxStagedK ? static_cast<int>(whole) : kSmallKMaxStagedK;
  return 4 * staged * (rows + SmallKPitchB(tile.Columns()));
}

}  // namespace jaxkernels
