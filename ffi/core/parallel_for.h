// Parallel loops on the thread pool that XLA gives to a handler.
//
// Owns: the chunks of rows, their assignment to threads, and synchronisation. Must not know: what
// is done with a row.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "core/ceil_div.h"
#include "core/guard.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// Calls body(step, unit) for all units of step 0, then for all units of step 1, and so on. Returns
// when all are done; returns an error if one has thrown. The caller works too, so that a pool
// without free threads costs time but cannot deadlock. An idle thread may release `body` later.
//
// A thread waits only for units that other threads already run, and yields meanwhile: all units of
// a step are taken before any unit of the next one. (The end of a step cannot schedule the next
// one, because the pool accepts tasks only while the handler runs.)
template <typename Body>
xla::ffi::Error ParallelSteps(xla::ffi::ThreadPool& pool, int64_t steps, int64_t units, Body body) {
  struct Work {
    Work(Body body, int64_t steps, int64_t units, int64_t threads)
        : body(std::move(body)), units(units), all(steps * units), threads(threads) {}

    // Deals units from `threads` separate ranges in turn, so that concurrent threads rarely write
    // to the same huge page.
    int64_t UnitOf(int64_t dealt) const {
      const int64_t place = dealt % threads, longer = units % threads;
      return place * (units / threads) + std::min(place, longer) + dealt / threads;
    }

    void WaitFor(int64_t count) const {
      while (done.load(std::memory_order_acquire) < count) std::this_thread::yield();
    }
    void Run() {
      for (;;) {
        const int64_t taken = next.fetch_add(1, std::memory_order_relaxed);
        if (taken >= all) return;
        const int64_t step = taken / units;
        WaitFor(step * units);
        if (!failed.load(std::memory_order_relaxed)) {
          xla::ffi::Error thrown = ThrownBy([&] { body(step, UnitOf(taken % units)); });
          if (!thrown.success() && !failed.exchange(true)) error = std::move(thrown);
        }
        done.fetch_add(1, std::memory_order_release);
      }
    }

    const Body body;
    const int64_t units, all, threads;
    alignas(64) std::atomic<int64_t> next{0};  // separate cache lines avoid false sharing
    alignas(64) std::atomic<int64_t> done{0};
    std::atomic<bool> failed{false};
    xla::ffi::Error error;  // the first error; read it when all is done
  };
  const int64_t threads = std::clamp<int64_t>(pool.num_threads(), 1, std::max<int64_t>(1, units));
  auto work = std::make_shared<Work>(std::move(body), steps, units, threads);
  ThrownBy([&] {
    for (int64_t i = 1; i < threads; ++i) pool.Schedule([work] { work->Run(); });
  });
  work->Run();
  work->WaitFor(work->all);
  return work->error;
}

// Bytes per chunk. The minimum hides the cost of scheduling. Large chunks keep two threads out of
// the same huge page, which both would clear although only one copy is kept.
inline constexpr int64_t kMinChunkBytes = 64 * 1024;
inline constexpr int64_t kMaxChunkBytes = 8 * 1024 * 1024;
inline constexpr int64_t kChunksPerThread = 4;

// Calls body(begin, end) on disjoint ranges that cover [0, rows), as one step. `row_bytes` is the
// memory traffic of one row.
template <typename Body>
xla::ffi::Error ParallelFor(xla::ffi::ThreadPool& pool, int64_t rows, int64_t row_bytes,
                            Body body) {
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const int64_t chunk_bytes =
      std::clamp(rows * row_bytes / (threads * kChunksPerThread), kMinChunkBytes, kMaxChunkBytes);
  const int64_t chunk_rows = std::max<int64_t>(1, chunk_bytes / std::max<int64_t>(1, row_bytes));
  return ParallelSteps(pool, 1, CeilDiv(rows, chunk_rows), [=](int64_t, int64_t chunk) {
    body(chunk * chunk_rows, std::min(rows, (chunk + 1) * chunk_rows));
  });
}

}  // namespace jaxkernels
