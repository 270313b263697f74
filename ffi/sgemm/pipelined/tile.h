// The tiles of the pipelined kernel: how the work of a block is cut.
//
// Owns: their sizes. Plain C++, so that plans are made without CUDA.
#ifndef JAXKERNELS_SGEMM_PIPELINED_TILE_H_
#define JAXKERNELS_SGEMM_PIPELINED_TILE_H_

#include <string_view>

namespace jaxkernels {

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
  int blocks_per_sm;  // that the registers have to allow
  int stages;         // that kTma has where it transposes nothing

  constexpr int ThreadsOfSlice() const { return block_m / thread_m * (block_n / thread_n); }
  constexpr int Threads() const { return ThreadsOfSlice() * slices; }
  // Whether every slice adds up some rows of the thread tile, or the first one all of them. H200,
  // by the first and by all (2026-11): 1024^3, 64 sums of a thread, 51.1 and 52.3 us; 256^3, 32
  // sums, 5.84 and 5.45 us.
  constexpr bool AllSlicesAdd() const { return slices > 1 && thread_m * thread_n <= 32; }
  // Whether threads read an A that lies along k as kTma brings it, four k at a time,
  // instead of transposing it: that takes the registers that small sliced tiles have left. H200,
  // kSmallSlicedTile, transposed, and as it lies and all k of a stage unrolled, in a CUDA graph
  // with operands from memory (2026-11): 256^3 5.2 and 4.4 us, 512^3 11.6 and 10.1.
  constexpr bool ReadsAlongK() const { return AllSlicesAdd(); }
};

// The fourth stage of the last two is for small products: with few blocks an SM, one more tile of k
// on its way. H200, kSmallSlicedTile, which still transposed A, 3, 4 and 5 (2026-11): 256^3 6.16,
// 5.85 and 5.84 us; (64, 512, 1024) 7.48, 6.85 and 6.88; 512^3 11.8, 11.7 and 11.8. The last one
// lets products of up to 66 small tiles use all SMs: 256^3, kSmallSlicedTile and
// kTinySlicedTile, 4.4 and 4.0 us; where there are more tiles it is slower ((256, 512, 512) 7.2
// and 7.9 us).
inline constexpr PipelinedTile kPipelinedTiles[] = {
    {128, 128, 8, 16, 8, 1, 2, 3},  // kLargeTile
    {32, 32, 8, 4, 4, 1, 8, 3},     // kSmallTile
    {64, 64, 8, 8, 8, 4, 2, 3},     // kMediumSlicedTile
    {32, 32, 8, 4, 4, 4, 3, 4},     // kSmallSlicedTile
    {32, 16, 4, 4, 8, 4, 3, 4},     // kTinySlicedTile
};
inline constexpr int kPipelinedTileCount = sizeof(kPipelinedTiles) / sizeof(kPipelinedTiles[0]);
enum PipelinedTileIndex {
  kLargeTile,
  kSmallTile,
  kMediumSlicedTile,
  kSmallSlicedTile,
  kTinySlicedTile
};

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

#endif  // JAXKERNELS_SGEMM_PIPELINED_TILE_H_
