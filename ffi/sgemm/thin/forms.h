// The forms of thin products, and how each cuts the work of a block.
//
// Owns: their names and sizes. This file is plain C++, so that plans are made without CUDA.
#ifndef JAXKERNELS_SGEMM_THIN_FORMS_H_
#define JAXKERNELS_SGEMM_THIN_FORMS_H_

#include <cstdint>
#include <string_view>

#include "core/host_device.h"

namespace jaxkernels {

// ThinForm tells which dimension is small. kAlongK and kAcrossK: one side has few lines, and the
// long side is K-major or MN-major. kShallow: k is small.
enum class ThinForm { kNone, kAlongK, kAcrossK, kShallow };
inline constexpr std::string_view kThinFormNames[] = {"none", "along_k", "across_k", "shallow"};
constexpr const auto& NamesOf(ThinForm) { return kThinFormNames; }

inline constexpr int kThinThreads = 256;
inline constexpr int kThinBlocksPerSm = 3;  // limited by registers
inline constexpr int kThinMostFew = 4;      // lines of the short side

// ThinFewOf returns the short-side lines that a kernel is compiled for. Missing lines are zero.
constexpr int ThinFewOf(int64_t few) { return few > 1 ? 4 : 1; }

// kAlongK: a warp sums kAlongLinesOfWarp lines at a time, with its lanes along k. A block iterates
// `turns` times.
inline constexpr int kAlongLinesOfWarp = 4;
inline constexpr int kAlongStepK = 128;  // k of a warp: four per lane
inline constexpr int kAlongSlices = 32;  // lanes of a warp
inline constexpr int kAlongLinesOfTurn = kThinThreads / 32 * kAlongLinesOfWarp;
inline constexpr int kAlongMostTurns = 8;

// kAcrossK: a thread has four lines.
inline constexpr int kAcrossLines = 4;
inline constexpr int kAcrossMostLanes = 64;  // threads side by side

// kShallow: a thread has `rows` x `columns` sums of a tile, and `lanes` threads side by side share
// rows. A block of W warps has a tile of W * RowsOfWarp() rows by Columns() columns.
struct ShallowTile {
  int lanes, rows, columns;
  int blocks_per_sm;  // blocks of kShallowMostThreads that the registers must allow
  int least_threads;  // of a block; a power of two
  // Fitted rates of a full SM with a K-major and with an MN-major A; 1 is 128 FFMA a cycle of the
  // model.
  double efficiency, efficiency_across;

  constexpr int RowLanes() const { return 32 / lanes; }
  constexpr int RowsOfWarp() const { return rows * RowLanes(); }
  constexpr int Columns() const { return lanes * columns; }
};

// The first three tiles are for more than 32 columns, the third for long rows of C. The fourth is
// for small products. The others are for few columns; the fifth is also for somewhat more columns
// than a multiple of 64. With an MN-major A the fifth gains nothing. With the others' factor of
// 1.19 it would be chosen for (53608, 160, 64) TN, and took 46.2 us where the first took 44.2
// (H100, 2026-11).
inline constexpr ShallowTile kShallowTiles[] = {
    {8, 8, 8, 4, 128, 0.80, 0.95}, {8, 4, 8, 6, 32, 0.79, 0.94}, {16, 4, 8, 6, 32, 0.72, 0.86},
    {16, 4, 4, 8, 32, 0.80, 0.95}, {4, 4, 8, 6, 32, 0.74, 0.74}, {4, 4, 4, 8, 32, 0.96, 1.14},
    {2, 4, 4, 8, 32, 1.00, 1.19},  {1, 2, 4, 8, 32, 1.00, 1.19},
};
inline constexpr int kShallowTileCount = sizeof(kShallowTiles) / sizeof(kShallowTiles[0]);
// Minimum columns of a tile, unless C has fewer. us with 64 and with 32 (H100, 2026-11):
// (53608, 65, 64) 34.2 27.7
// (53608, 96, 64) 30.6 26.1
// (53608, 96, 64) TN 32.6 28.1
// (53608, 129, 64) 48.0 42.7
// (53608, 160, 64) 47.7 41.4
inline constexpr int kShallowColumns = 32;
inline constexpr int kShallowMostThreads = 128;

// k of a stage. With 32, a stage takes whole 128 bytes of each line of a K-major A. (65536, 64, 64)
// took 20.8 us with 16 and 19.8 with 32, but TN 18.4 and 19.8 (H200, 2026-11).
JK_HOST_DEVICE constexpr int ShallowStageDepth(bool a_along_k) { return a_along_k ? 32 : 16; }
// Maximum k in shared memory at once, which fills it. Deeper products reuse the stages.
inline constexpr int kShallowMostStaged = 64;

// ShallowPitchB returns the floats from one k of B to the next. It puts the 4 columns by 8 k that a
// warp stores at once into different banks.
JK_HOST_DEVICE constexpr int ShallowPitchB(int columns) { return columns + 4; }
// ShallowSmemBytes counts stages only: sums that are not stored in packs reuse their memory.
constexpr int ShallowSmemBytes(const ShallowTile& tile, int threads, int64_t k, bool a_along_k) {
  const int rows = threads / 32 * tile.RowsOfWarp(), depth = ShallowStageDepth(a_along_k);
  const int64_t whole = (k + depth - 1) / depth * depth;
  const int staged = whole < kShallowMostStaged ? static_cast<int>(whole) : kShallowMostStaged;
  return 4 * staged * (rows + ShallowPitchB(tile.Columns()));
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_FORMS_H_
