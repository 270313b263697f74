// GPU limits that launch plans depend on, as a plain value.
//
// Owns: the DeviceLimits struct and the limits of well-known devices, so that plans can be made and
// tested on a machine without a GPU; architectures, and tables of values per architecture. Must not
// know: the CUDA runtime (device_query.cu fills a DeviceLimits from a live device).
#pragma once

#include <algorithm>
#include <string>
#include <tuple>

#include "core/fields.h"

namespace jaxkernels {

// Shared memory that CUDA reserves per resident block (compute capability 8.0 and later).
inline constexpr int kReservedSmemPerBlock = 1024;

// HasWgmma tells whether a GPU can run the wgmma of code for `compiled_for`: only 9.0 has these
// instructions.
constexpr bool HasWgmma(int compute_capability, int compiled_for) {
  return compute_capability == 90 && compiled_for == 90;
}

// Peak memory bandwidth (10^9 bytes/s) and maximum clock of an H200, to which models of times were
// fitted.
inline constexpr int kFittedMemoryGbPerS = 4917, kFittedClockMhz = 1980;

struct DeviceLimits {
  std::string name;
  int sm_count = 0;
  int smem_per_block = 0;  // bytes per block after opting in, not the default 48 KiB
  int smem_per_sm = 0;     // bytes
  int threads_per_sm = 0;
  int blocks_per_sm = 0;
  int registers_per_sm = 0;    // 32-bit registers
  int compute_capability = 0;  // 90 for 9.0; features depend on compiled_for instead
  int cluster_blocks = 1;      // maximum cluster size; 1 without clusters
  int memory_gb_per_s = kFittedMemoryGbPerS;
  int clock_mhz = kFittedClockMhz;
  // The compute capability that the loaded code was compiled for. Code for an older GPU also runs
  // on a newer one, without the newer features.
  int compiled_for = compute_capability;
  // Whether the code contains wgmma: code for "sm_90a" does, code for "sm_90" does not.
  bool has_wgmma = HasWgmma(compute_capability, compiled_for);

  // Resident blocks per SM by threads and shared memory. Callers also count registers.
  int BlocksPerSm(int threads, int smem_bytes) const {
    const int by_smem = smem_per_sm / (smem_bytes + kReservedSmemPerBlock);
    return std::min({threads_per_sm / threads, by_smem, blocks_per_sm});
  }

  // MemoryRate returns the bytes that the memory moves in a cycle, relative to an H200's.
  double MemoryRate() const {
    const double bandwidth = static_cast<double>(memory_gb_per_s) / kFittedMemoryGbPerS;
    return bandwidth * kFittedClockMhz / clock_mhz;
  }

  static constexpr const char* kName = "DeviceLimits";
  template <typename Self>
  static auto FieldsOf(Self& self) {
    return std::tuple(
        Field("name", self.name), Field("sm_count", self.sm_count),
        Field("smem_per_block", self.smem_per_block), Field("smem_per_sm", self.smem_per_sm),
        Field("threads_per_sm", self.threads_per_sm), Field("blocks_per_sm", self.blocks_per_sm),
        Field("registers_per_sm", self.registers_per_sm),
        Field("compute_capability", self.compute_capability),
        Field("cluster_blocks", self.cluster_blocks),
        Field("memory_gb_per_s", self.memory_gb_per_s), Field("clock_mhz", self.clock_mhz),
        Field("compiled_for", self.compiled_for), Field("has_wgmma", self.has_wgmma));
  }
};

enum class Arch { kAmpere, kAda, kHopper, kBlackwell };

// A value per architecture. An architecture without its own measurement has Hopper's value.
template <typename T>
struct ByArch {
  T hopper;
  T ampere = hopper, ada = hopper, blackwell = hopper;

  constexpr T operator[](Arch arch) const {
    const T cells[] = {ampere, ada, hopper, blackwell};
    return cells[static_cast<int>(arch)];
  }
};

// The architecture of the GPU itself, whichever one the code was compiled for: thresholds depend on
// caches, GPCs and rates, which the code does not change.
inline Arch ArchOf(const DeviceLimits& limits) {
  if (limits.compute_capability >= 100) return Arch::kBlackwell;
  if (limits.compute_capability >= 90) return Arch::kHopper;
  return limits.compute_capability == 89 ? Arch::kAda : Arch::kAmpere;
}

// The portable cluster size, which needs no opt-in.
inline constexpr int kPortableClusterBlocks = 8;

// Limits are from the CUDA C++ programming guide, "Technical Specifications per Compute
// Capability"; SM counts, bandwidths and clocks are from the vendor. The number after the compute
// capability is the maximum cluster size: 1 before compute capability 9.0, then 8, or 16 with an
// opt-in on GPUs whose GPCs have that many SMs. The H20 has not been queried, so it has the
// portable size. The A100 has 80 GB; A100, H100 and H200 are SXM modules.
inline const DeviceLimits kNamedDevices[] = {
    {"a100", 108, 163 * 1024, 164 * 1024, 2048, 32, 65536, 80, 1, 2039, 1410},
    {"rtx3090", 82, 99 * 1024, 100 * 1024, 1536, 16, 65536, 86, 1, 936, 1695},
    {"a10", 72, 99 * 1024, 100 * 1024, 1536, 16, 65536, 86, 1, 600, 1695},
    {"l4", 58, 99 * 1024, 100 * 1024, 1536, 24, 65536, 89, 1, 300, 2040},
    {"l40s", 142, 99 * 1024, 100 * 1024, 1536, 24, 65536, 89, 1, 864, 2520},
    {"rtx4090", 128, 99 * 1024, 100 * 1024, 1536, 24, 65536, 89, 1, 1008, 2520},
    {"h20", 78, 227 * 1024, 228 * 1024, 2048, 32, 65536, 90, 8, 4022, 1980},
    {"h100", 132, 227 * 1024, 228 * 1024, 2048, 32, 65536, 90, 16, 3352, 1980},
    {"h200", 132, 227 * 1024, 228 * 1024, 2048, 32, 65536, 90, 16, 4917, 1980},
    {"gh200", 132, 227 * 1024, 228 * 1024, 2048, 32, 65536, 90, 16, 4022, 1980},
    {"b200", 148, 227 * 1024, 228 * 1024, 2048, 32, 65536, 100, 16, 8000, 1965},
    {"rtx5090", 170, 99 * 1024, 100 * 1024, 1536, 24, 65536, 120, 8, 1792, 2407},
};

}  // namespace jaxkernels
