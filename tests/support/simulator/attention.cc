// Simulates attention, forward and backward, and compares it with float64. Arguments: batch,
// queries, keys, heads, heads of keys, depth, depth of values, left and right bounds of the band
// (or -1e9, 1e9), and a set of letters: b(ias), m(ask), q and k (lengths). Prints relative errors.
#include "simulator.h"
// after the macros
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "attention/launch.cu"
#include "attention/plan.cc"

using namespace jaxkernels;
using Values = std::vector<float>;
using Doubles = std::vector<double>;

namespace {

std::mt19937 generator(1);
Values Normal(int64_t size, double factor = 1) {
  std::normal_distribution<float> normal;
  Values values(size);
  for (float& x : values) x = static_cast<float>(factor * normal(generator));
  return values;
}

double Error(const char* name, const Values& found, const Doubles& want) {
  double square = 0, whole = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    square += std::pow(found[i] - want[i], 2);
    whole += want[i] * want[i];
  }
  const double error = std::sqrt(square / std::max(whole, 1e-300));
  std::printf("%s %.2e\n", name, error);
  return error;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 11) return 2;
  int64_t n[9];
  for (int i = 0; i < 9; ++i) n[i] = std::atoll(arguments[i + 1]);
  const auto [B, T, S, N, K, D, E, left, right] = n;
  const std::string has = arguments[10];
  const auto with = [&](char letter) { return has.find(letter) != std::string::npos; };
  const AttentionProblem problem = {B, T, S, N, K, D, E};
  DeviceLimits limits;
  limits.has_wgmma = true;
  limits.sm_count = 3;
  const auto planned = PlanAttention(problem, limits, false);
  if (!planned.error.empty()) return 3;
  const Values q = Normal(B * T * N * D), k = Normal(B * S * K * D), v = Normal(B * S * K * E);
  const Values dy = Normal(B * T * N * E, 1e-3), bias = Normal(N * T * S);
  std::vector<uint8_t> mask(B * T * S);
  for (uint8_t& x : mask) x = generator() % 4 != 0;
  std::vector<int32_t> q_lengths(B), k_lengths(B);
  for (int b = 0; b < B; ++b) q_lengths[b] = T - b - T / 3, k_lengths[b] = S - S / 4 + b;
  Values y(B * T * N * E, NAN), sums(B * N * T * 2, NAN);
  const auto bound = [](int64_t x) {
    return static_cast<int>(std::clamp<int64_t>(x, -kOpenBand, kOpenBand));
  };
  AttentionCall call = {.q = q.data(), .k = k.data(), .v = v.data()};
  call.scale = 0.7f / std::sqrt(static_cast<float>(D));
  call.band = {bound(left), bound(right)};
  if (with('b')) call.bias = {bias.data(), {1, N, T, S}};
  if (with('m')) call.mask = {mask.data(), {B, 1, T, S}};
  if (with('q')) call.q_lengths = q_lengths.data();
  if (with('k')) call.k_lengths = k_lengths.data();
  call.out = y.data(), call.row_sums = sums.data();
  std::vector<char> scratch(planned.plan.scratch_bytes + 1024, char(0xff));
  const auto start = [](std::vector<char>& bytes) {
    return bytes.data() + (1024 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 1024);
  };
  call.scratch = start(scratch);
  if (LaunchAttention(problem, planned.plan, call, nullptr) != cudaSuccess) return 4;

  Doubles want_y(y.size()), want_lse(B * N * T), dq(q.size()), dk(k.size()), dv(v.size());
  Doubles dbias(N * T * S);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < N; ++h) {
      const int64_t g = h / (N / K);
      for (int64_t i = 0; i < T; ++i) {
        Doubles p(S), dp(S);
        double top = -INFINITY, whole = 0, delta = 0;
        const float* const qi = &q[((b * T + i) * N + h) * D];
        const int64_t row = ((b * T + i) * N + h) * E;
        for (int64_t j = 0; j < S; ++j) {
          double s = 0;
          for (int64_t d = 0; d < D; ++d) s += double{qi[d]} * k[((b * S + j) * K + g) * D + d];
          s *= call.scale;
          if (with('b')) s += bias[(h * T + i) * S + j];
          const bool sees = j >= i + left && j <= i + right &&
                            (!with('m') || mask[(b * T + i) * S + j]) &&
                            (!with('k') || j < k_lengths[b]) && (!with('q') || i < q_lengths[b]);
          p[j] = sees ? s : -INFINITY;
          top = std::max(top, p[j]);
        }
        for (int64_t j = 0; j < S; ++j) whole += p[j] = top == -INFINITY ? 0 : std::exp(p[j] - top);
        want_lse[(b * N + h) * T + i] = top + std::log(whole);
        for (int64_t j = 0; j < S; ++j) {
          if (whole > 0) p[j] /= whole;
          const int64_t at = ((b * S + j) * K + g) * E;
          for (int64_t e = 0; e < E; ++e) {
            want_y[row + e] += p[j] * v[at + e];
            dp[j] += double{dy[row + e]} * v[at + e];
            dv[at + e] += p[j] * dy[row + e];
          }
          delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j < S; ++j) {
          dbias[(h * T + i) * S + j] += p[j] * (dp[j] - delta);
          const double ds = p[j] * (dp[j] - delta) * call.scale;
          for (int64_t d = 0; d < D; ++d) {
            const int64_t at = ((b * S + j) * K + g) * D + d;
            dq[((b * T + i) * N + h) * D + d] += ds * k[at];
            dk[at] += ds * qi[d];
          }
        }
      }
    }
  }
  double worst = Error("O", y, want_y), worst_lse = 0;
  for (std::size_t i = 0; i < want_lse.size(); ++i) {
    const double lse = sums[2 * i] * std::log(2.0) + std::log(double{sums[2 * i + 1]});
    if (!(lse == want_lse[i])) worst_lse = std::max(worst_lse, std::abs(lse - want_lse[i]));
    if (std::isnan(lse)) worst_lse = INFINITY;
  }
  std::printf("log-sum-exp %.2e\n", worst_lse);
  worst = std::max(worst, worst_lse / 4);
  const auto backward = PlanAttention(problem, limits, true);
  if (backward.error.empty()) {
    Values found_q(q.size(), NAN), found_k(k.size(), NAN), found_v(v.size(), NAN);
    std::vector<char> more(backward.plan.scratch_bytes + 1024, char(0xff));
    call.scratch = start(more);
    constexpr int kGroups = 2;
    Values found_bias(with('b') ? kGroups * dbias.size() : 0, NAN);
    const AttentionGradients gradients = {dy.data(),         found_q.data(),
                                          found_k.data(),    found_v.data(),
                                          found_bias.data(), with('b') ? kGroups : 0};
    if (LaunchAttentionBackward(problem, backward.plan, call, gradients, nullptr) != cudaSuccess)
      return 4;
    worst = std::max(worst, Error("dQ", found_q, dq));
    worst = std::max(worst, Error("dK", found_k, dk));
    worst = std::max(worst, Error("dV", found_v, dv));
    if (with('b')) {
      for (std::size_t i = 0; i < dbias.size(); ++i) found_bias[i] += found_bias[dbias.size() + i];
      worst = std::max(worst, Error("dBias", found_bias, dbias));
    }
  }
  return worst < 1e-6 ? 0 : 1;
}
