// Products of small k: the stages of a block, filled by copies that bypass the registers.
//
// A thread goes from one copy to the next by additions: with a multiplication for each, copies took
// half the instructions of the FFMA.
#pragma once

#include <cstdint>

#include "core/shared_address.cuh"
#include "sgemm/args.cuh"
#include "sgemm/pipelined/async_copy.cuh"
#include "sgemm/tiles.h"

namespace jaxkernels {

struct SmallKOperand {
  const float* data;  // the first line at the first k
  int64_t pitch;      // from line to line if K-major, else from k to k
  int lines, depth;   // in range
  bool in_packs;      // stored rows start at 16-byte boundaries

  // `matrix` has `all_lines` lines; the block begins at line `first`.
  __device__ SmallKOperand(const float* matrix, bool k_major, int64_t all_lines, int64_t all_depth,
                           int64_t first, int lines_of_block, bool in_packs)
      : data(matrix + first * (k_major ? all_depth : 1)),
        pitch(k_major ? all_depth : all_lines),
        lines(static_cast<int>(min(all_lines - first, int64_t{lines_of_block}))),
        depth(static_cast<int>(all_depth)),
        in_packs(in_packs) {}
};

// QuadsFrom returns the quads of k in a stage, at most `most`. Zeros fill the last one.
__device__ inline int QuadsFrom(int first_k, int depth, int most) {
  return min((depth - first_k + 3) / 4, most);
}

// SwizzledQuad returns the place of a quad of k among the eight of a K-major row. It puts the eight
// neighbouring rows that threads access at once into different banks.
__device__ inline unsigned SwizzledQuad(unsigned row, unsigned quad) { return quad ^ (row % 8); }

// CopyKMajorRows copies rows of a K-major A to [row][quad]. The stage starts at a 128-byte
// boundary.
template <int kDepth>
__device__ void CopyKMajorRows(const SmallKOperand& a, int first_k, int rows, float* stage) {
  static_assert(kDepth == 32, "a row is all 32 banks");
  const int quads = QuadsFrom(first_k, a.depth, kDepth / 4);
  const unsigned base = SharedAddress(stage);
  if (a.in_packs) {
    const unsigned quad = threadIdx.x % 8, step = blockDim.x / 8;
    int row = threadIdx.x / 8;
    if (static_cast<int>(quad) >= quads) return;
    const float* from = a.data + row * a.pitch + first_k + 4 * quad;
    unsigned to = base + 4 * kDepth * row + 16 * SwizzledQuad(row, quad);
    // A step of 4 rows flips one bit of a quad's place; a step of a multiple of 8 flips none.
    const unsigned flipped = step % 8 * 16;
#pragma unroll 4
    for (; row < rows; row += step, from += step * a.pitch) {
      CopyPackAsync(to, from, row < a.lines);
      to = (to ^ flipped) + 4 * kDepth * step;
    }
    return;
  }
  const unsigned k = threadIdx.x % kDepth;
  const int step = blockDim.x / kDepth;
  int row = threadIdx.x / kDepth;
  if (static_cast<int>(k) >= 4 * quads) return;
  const float* from = a.data + row * a.pitch + first_k + k;
  const bool valid = static_cast<int>(first_k + k) < a.depth;
#pragma unroll 4
  for (; row < rows; row += step, from += step * a.pitch) {
    const unsigned to = base + 4 * kDepth * row + 16 * SwizzledQuad(row, k / 4) + 4 * (k % 4);
    CopyFloatAsync(to, from, valid && row < a.lines);
  }
}

// CopyMNMajor copies an MN-major operand to [k][line], `pitch` floats from one k to the next.
// `lines`: of the block, a power of two. kShared: all blocks read the same lines.
template <int kDepth, bool kShared>
__device__ void CopyMNMajor(const SmallKOperand& of, int first_k, int lines, int pitch,
                            float* stage) {
  const int staged = 4 * QuadsFrom(first_k, of.depth, kDepth / 4), threads = blockDim.x;
  const int depth = of.depth - first_k;
  const int width = of.in_packs ? 4 : 1, copies = lines / width;  // copies per k
  const int shift = __ffs(copies) - 1;
  const float* const data = of.data + first_k * of.pitch;
  if (of.in_packs && copies <= threads) {
    const int line = 4 * (threadIdx.x & (copies - 1)), step = threads >> shift;
    int k = threadIdx.x >> shift;
    const bool valid = line < of.lines;
    const float* from = data + k * of.pitch + line;
    uint32_t to = SharedAddress(stage + k * pitch + line);
#pragma unroll 4
    for (; k < staged; k += step, from += step * of.pitch, to += 4 * step * pitch) {
      if constexpr (kShared) {
        CopySharedPackAsync(to, from, valid && k < depth);
      } else {
        CopyPackAsync(to, from, valid && k < depth);
      }
    }
    return;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < staged * copies; i += threads) {
    const int k = i >> shift, line = (i & (copies - 1)) * width;
    const float* const from = data + k * of.pitch + line;
    const uint32_t to = SharedAddress(stage + k * pitch + line);
    const bool valid = line < of.lines && k < depth;
    if (of.in_packs) {
      CopyPackAsync(to, from, valid);
    } else {
      CopyFloatAsync(to, from, valid);
    }
  }
}

// CopyKMajorColumns copies columns of a K-major B to [k][column]. A warp copies 8 k of 4 columns.
template <int kDepth, int kColumns>
__device__ void CopyKMajorColumns(const SmallKOperand& b, int first_k, float* stage) {
  constexpr int kPitch = SmallKPitchB(kColumns);
  const int staged = 4 * QuadsFrom(first_k, b.depth, kDepth / 4);
  const int step = blockDim.x / 8;  // columns of all warps
#pragma unroll 1
  for (int k = threadIdx.x % 8; k < staged; k += 8) {
    int column = threadIdx.x / 8;
    const bool valid = first_k + k < b.depth;
    const float* from = b.data + column * b.pitch + first_k + k;
    uint32_t to = SharedAddress(stage + k * kPitch + column);
#pragma unroll 4
    for (; column < kColumns; column += step, from += step * b.pitch, to += 4 * step) {
      CopyFloatAsync(to, from, valid && column < b.lines);
    }
  }
}

}  // namespace jaxkernels
