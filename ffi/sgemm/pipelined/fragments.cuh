// Loads the lines that a thread multiplies from a tile in shared memory into registers.
//
// Owns: which elements of a tile a thread reads, and when. Must not know: how tiles arrive.
//
// Both kinds have two generations of registers, so that a later k loads while this one is
// multiplied:
//   First(slice, line)   returns where a thread begins to read a tile
//   Load(from, k)        is called for every k of a slice in turn, one k ahead
//   Of(k)                returns the elements
#pragma once

#include "sgemm/args.cuh"
#include "sgemm/pipelined/stages.cuh"

namespace jaxkernels {

// Quads: a thread tile consists of quads of neighbouring lines, kLanes quads apart.
template <int kLanes>
struct Quads {
  static __device__ constexpr int LineOf(int i) { return i / 4 * 4 * kLanes + i % 4; }
};

// FragmentMNMajor reads a tile that has a row of kPitch lines for every k. A slice has kDepth rows.
template <int kLines, int kLanes, int kPitch, int kDepth>
class FragmentMNMajor {
 public:
  static __device__ int First(int slice, int line) { return slice * kDepth * kPitch + line; }

  __device__ void Load(const float* from, int k) {
#pragma unroll
    for (int i = 0; i < kLines; i += 4) {
      LoadQuad(from + k * kPitch + Quads<kLanes>::LineOf(i), &v_[k % 2][i]);
    }
  }

  __device__ const float (&Of(int k) const)[kLines] { return v_[k % 2]; }

 private:
  float v_[2][kLines];
};

// FragmentKMajor reads a tile of kTileLines K-major lines, in boxes as TMA writes them with the
// 128-byte swizzle: pack p (four k) of line l lies at place p ^ (l % 8) of the line. A thread reads
// one pack of each line at once.
template <int kLines, int kLanes, int kTileLines, int kDepth>
class FragmentKMajor {
  static constexpr int kBoxPacks = kBoxDepth / 4, kPacks = kDepth / 4;
  // This makes the bits of a pack's place that depend on the thread disjoint from those that depend
  // on i.
  static_assert(kPacks == 4 && kBoxPacks == 8 && kLanes % 2 == 0);

 public:
  // Requires: line % 4 == 0.
  static __device__ int First(int slice, int line) {
    const int pack = slice * kPacks;
    return (pack / kBoxPacks * kTileLines + line) * kBoxDepth +
           (pack % kBoxPacks ^ line % kBoxPacks) * 4;
  }

  // Load loads the first pack with the first k, and each further pack as soon as registers are
  // free.
  __device__ void Load(const float* from, int k) {
    if (k == 0) LoadPack(from, 0);
    if (k % 4 == 1 && k / 4 + 1 < kPacks) LoadPack(from, k / 4 + 1);
  }

  __device__ const float (&Of(int k) const)[kLines] { return v_[k / 4 % 2][k % 4]; }

 private:
  __device__ void LoadPack(const float* from, int pack) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const float4 quad = *reinterpret_cast<const float4*>(
          from + Quads<kLanes>::LineOf(i) * kBoxDepth + (pack ^ i % 4) * 4);
      v_[pack % 2][0][i] = quad.x;
      v_[pack % 2][1][i] = quad.y;
      v_[pack % 2][2][i] = quad.z;
      v_[pack % 2][3][i] = quad.w;
    }
  }

  float v_[2][4][kLines];
};

}  // namespace jaxkernels
