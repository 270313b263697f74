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
inline constexpr int kThinMostFew = 16;  // lines of the operand of few

// Of how many few lines a kernel has sums; lines that are missing are zeros.
constexpr int ThinFewOf(int64_t few) { return few > 4 ? 16 : few > 1 ? 4 : 1; }

// kAlongK: a warp sums so many lines at a time, its lanes over k. Where lines are not so few a
// block does so twice, because it has to bring their k into shared memory.
inline constexpr int kAlongLinesOfWarp = 4;
inline constexpr int kAlongStepK = 128;  // of a warp: four k of each lane
inline constexpr int kAlongSlices = 32;  // the lanes
inline constexpr int kAlongLinesOfTurn = kThinThreads / 32 * kAlongLinesOfWarp;
constexpr int AlongTurns(int few) { return few > 4 ? 2 : 1; }

// kAcrossK: a thread has four lines.
inline constexpr int kAcrossLines = 4;

// kShallow: a thread has four columns of C, and so many rows.
inline constexpr int kShallowColumns = 4;
inline constexpr int kShallowMostRows = 8;

// k that a block has in shared memory at once. With few columns its lines of A are many.
constexpr int ShallowDepth(int lanes) { return lanes < 8 ? 16 : 32; }
// Floats from one row of A to the next, an odd number of packs: eight rows that threads read at
// once lie in different banks.
constexpr int ShallowPitchA(int64_t k, int lanes) {
  const int depth = k < ShallowDepth(lanes) ? static_cast<int>(k) : ShallowDepth(lanes);
  return ((depth + 3) / 4 | 1) * 4;
}
// Floats from one k of B to the next: 16 lines by 2 packs of k that a warp stores at once lie in
// different banks.
constexpr int ShallowPitchB(int lanes) { return kShallowColumns * lanes + 4; }
constexpr int ShallowSmemBytes(int64_t k, int lanes, int rows) {
  const int depth = k < ShallowDepth(lanes) ? static_cast<int>(k + 3) / 4 * 4 : ShallowDepth(lanes);
  const int rows_of_block = kThinThreads / lanes * rows;
  return 4 * (rows_of_block * ShallowPitchA(k, lanes) + depth * ShallowPitchB(lanes));
}

}  // namespace jaxkernels

#endif  // JAXKERNELS_SGEMM_THIN_FORMS_H_
