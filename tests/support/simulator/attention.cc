// Simulates attention, forward and backward. Arguments: batch, queries, keys, heads, heads of keys,
// depth, depth of values, left and right bounds of the band (or -1e9, 1e9), and letters for
// options: b(ias), m(ask), q and k (lengths). Reads from the standard input q, k, v, dy, the bias
// (1, heads, queries, keys), the mask (batch, 1, queries, keys) and the lengths. Writes y, the row
// sums, dq, dk, dv and two partial sums of the bias's gradient.
#include "simulator.h"
// after the macros
#include "attention/launch.cu"
#include "attention/plan.cc"

using namespace jaxkernels;

namespace {

template <typename T>
std::vector<T> Read(int64_t size) {
  std::vector<T> values(size);
  if (std::fread(values.data(), sizeof(T), size, stdin) != std::size_t(size)) std::exit(2);
  return values;
}

std::vector<float> Result(int64_t size) { return std::vector<float>(size, NAN); }

}  // namespace

int main(int count, char** arguments) {
  if (count != 11) return 2;
  int64_t n[9];
  for (int i = 0; i < 9; ++i) n[i] = std::atoll(arguments[i + 1]);
  const auto [B, T, S, N, K, D, E, left, right] = n;
  const auto with = [&](char letter) { return std::strchr(arguments[10], letter) != nullptr; };
  const auto q = Read<float>(B * T * N * D), k = Read<float>(B * S * K * D);
  const auto v = Read<float>(B * S * K * E), dy = Read<float>(B * T * N * E);
  const auto bias = Read<float>(N * T * S);
  const auto mask = Read<uint8_t>(B * T * S);
  const auto q_lengths = Read<int32_t>(B), k_lengths = Read<int32_t>(B);
  const auto bound = [](int64_t x) {
    return static_cast<int>(std::clamp<int64_t>(x, -kOpenBand, kOpenBand));
  };
  auto y = Result(B * T * N * E), sums = Result(B * N * T * 2);
  AttentionCall call = {.q = q.data(), .k = k.data(), .v = v.data()};
  call.scale = 0.7f / std::sqrt(static_cast<float>(D));
  call.band = {bound(left), bound(right)};
  if (with('b')) call.bias = {bias.data(), {1, N, T, S}};
  if (with('m')) call.mask = {mask.data(), {B, 1, T, S}};
  if (with('q')) call.q_lengths = q_lengths.data();
  if (with('k')) call.k_lengths = k_lengths.data();
  call.out = y.data(), call.row_sums = sums.data();
  constexpr int kGroups = 2;
  auto dq = Result(q.size()), dk = Result(k.size()), dv = Result(v.size());
  auto dbias = Result(with('b') ? kGroups * bias.size() : 0);
  const AttentionGradients gradients = {dy.data(), dq.data(),    dk.data(),
                                        dv.data(), dbias.data(), with('b') ? kGroups : 0};
  const AttentionProblem problem = {B, T, S, N, K, D, E};
  DeviceLimits limits;
  limits.has_wgmma = true;
  limits.sm_count = 3;
  for (const bool backward : {false, true}) {
    const auto [plan, error] = PlanAttention(problem, limits, backward);
    if (!error.empty()) return 3;
    std::vector<char> scratch(plan.scratch_bytes + 1024, char(0xff));
    const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
    call.scratch = scratch.data() + (1024 - address % 1024);
    const auto status = backward ? LaunchAttentionBackward(problem, plan, call, gradients, nullptr)
                                 : LaunchAttention(problem, plan, call, nullptr);
    if (status != cudaSuccess) return 4;
  }
  for (const auto* found : {&y, &sums, &dq, &dk, &dv, &dbias}) {
    std::fwrite(found->data(), sizeof(float), found->size(), stdout);
  }
}
