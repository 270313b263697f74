// The forms of thin products, and how each cuts the work of a block.
//
// Owns: their names and sizes. Plain C++, so that plans are made without CUDA.
#ifndef JAXKERNELS_SGEMM_THIN_FORMS_H_
#define JAXKERNELS_SGEMM_THIN_FORMS_H_

#include <cstdint>
#include <string_view>

namespace jaxkernels {

// Which operand is long, and how it lies. kAlongK and kAcrossK: one operand has few lines, the
// other one, of many lines, lies along k or across. kShallow: k is short.
enum class ThinForm { kNone, kAlongK, kAcrossK, kShallow };
inline constexpr std::string_view kThinFormNames[] = {"none", "along_k", "across_k", "shallow"};
constexpr const auto& NamesOf(ThinForm) { return kThinFormNames; }

inline constexpr int kThinThreads = 256;
inline constexpr int kThinBlocksPerSm = 3;  // that their registers allow
inline constexpr int kThinMostFew = 4;      // lines of the operand of few

// Of how many few lines a kernel has sums; lines that are missing are zeros.
constexpr int ThinFewOf(int64_t few) { return few > 1 ? 4 : 1; }

// kAlongK: a warp sums so many lines at a time, its lanes over k; a block does so some times.
inline constexpr int kAlongLinesOfWarp = 4;
inline constexpr int kAlongStepK = 128;  // of a warp: four k of each lane
inline constexpr int kAlongSlices = 32;  // the lanes
inline constexpr int kAlongLinesOfTurn = kThinThreads / 32 * kAlongLinesOfWarp;
inline constexpr int kAlongMostTurns = 8;

// kAcrossK: a thread has four lines.
inline constexpr int kAcrossLines = 4;
inline constexpr int kAcrossMostLanes = 64;  // threads side by side

// kShallow: a thread has four columns of C, and so many rows.
inline constexpr int kShallowColumns = 4;
inline constexpr int kShallowMostRows = 8;
inline constexpr int kShallowMostDepth = 64;

// Floats from one row of A to the next, an odd number of packs: eight rows that threads read at
// once lie in different banks.
constexpr int ShallowPitchA(int depth) { return ((depth + 3) / 4 | 1) * 4; }
// Floats from one k of B to the next: 16 lines by 2 packs of k that a warp stores at once lie in
// different banks.
constexpr int ShallowPitchB(int lanes) { return kShallowColumns * lanes + 4; }
constexpr int ShallowSmemBytes(int depth, int lanes, int rows) {
  const int rows_of_block = kThinThreads / lanes * rows;
  return 4 * (rows_of_block * ShallowPitchA(depth) + (depth + 3) / 4 * 4 * ShallowPitchB(lanes));
}
// k that a block has in shared memory at once: all, or as many as launches may have unasked.
inline constexpr int kShallowMostSmemBytes = 48 * 1024;
constexpr int ShallowDepth(int64_t k, int lanes, int rows) {
  int depth = k < kShallowMostDepth ? static_cast<int>(k) : kShallowMostDepth;
  while (ShallowSmemBytes(depth, lanes, rows) > kShallowMostSmemBytes)
    depth = (depth / 2 + 3) / 4 * 4;
  return depth;
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_FORMS_H_
