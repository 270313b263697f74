// Loops over rows on the thread pool that XLA hands to a handler.
//
// Owns: how rows are cut into chunks, which thread takes which, and who waits for whom. Must not
// know: what is done with a row.
#ifndef JAXKERNELS_CORE_PARALLEL_FOR_H_
#define JAXKERNELS_CORE_PARALLEL_FOR_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "core/guard.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {

// A future that has already happened.
inline xla::ffi::Future ReadyFuture(xla::ffi::Error error = xla::ffi::Error::Success()) {
  xla::ffi::Promise promise;
  xla::ffi::Future future(promise);
  if (error.success()) {
    promise.SetAvailable();
  } else {
    promise.SetError(std::move(error));
  }
  return future;
}

// Bytes that one chunk touches: enough to hide the cost of handing it out; where there is a lot to
// do, enough for two threads not to meet in one huge page, which both would clear for one to keep.
inline constexpr int64_t kMinChunkBytes = 64 * 1024;
inline constexpr int64_t kMaxChunkBytes = 8 * 1024 * 1024;
inline constexpr int64_t kChunksPerThread = 4;

// Calls body(begin, end) on ranges that together cover [0, rows) once each; the future is ready
// when all have returned, and an error if one has thrown. `row_bytes` is what one row reads and
// writes.
//
// The caller works too and never waits for another thread, so that a pool without a free thread
// costs time and not a deadlock: a chunk belongs to whichever thread takes it first.
template <typename Body>
xla::ffi::Future ParallelFor(xla::ffi::ThreadPool& pool, int64_t rows, int64_t row_bytes,
                             Body body) {
  const bool shared = rows > 1 && rows * row_bytes > kMinChunkBytes;
  const int64_t pool_threads = shared ? std::max<int64_t>(1, pool.num_threads()) : 1;
  const int64_t chunk_bytes = std::clamp(rows * row_bytes / (pool_threads * kChunksPerThread),
                                         kMinChunkBytes, kMaxChunkBytes);
  const int64_t chunk_rows = std::max<int64_t>(1, chunk_bytes / std::max<int64_t>(1, row_bytes));
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  const int64_t threads = std::min(chunks, pool_threads);
  if (threads <= 1) {
    if (rows > 0) body(int64_t{0}, rows);
    return ReadyFuture();
  }

  struct Work {
    Work(Body body, int64_t rows, int64_t chunk_rows, int64_t chunks)
        : body(std::move(body)), rows(rows), chunk_rows(chunk_rows), chunks(chunks), left(chunks) {}

    void Run() {
      for (;;) {
        const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= chunks) return;
        const int64_t begin = chunk * chunk_rows;
        left.CountDown(ThrownBy([&] { body(begin, std::min(rows, begin + chunk_rows)); }));
      }
    }

    const Body body;
    const int64_t rows, chunk_rows, chunks;
    std::atomic<int64_t> next{0};
    xla::ffi::CountDownPromise left;
  };
  // Shared, because a thread may arrive when all is done and the handler long gone.
  auto work = std::make_shared<Work>(std::move(body), rows, chunk_rows, chunks);
  xla::ffi::Future future(work->left);
  // From here on nothing may throw: XLA would take its buffers back while other threads write to
  // them. A thread that cannot be asked costs time only.
  ThrownBy([&] {
    for (int64_t i = 1; i < threads; ++i) pool.Schedule([work] { work->Run(); });
  });
  work->Run();
  return future;
}

// Calls body(step, unit) for all units of step 0, then for those of step 1, and so on, and returns
// when all are done; an error if one has thrown.
//
// Only threads that are at work are waited for, and others yield meanwhile: the units of a step are
// taken before those of the next one, so whoever waits for a unit waits for a thread that has it.
// (The pool is asked for threads only while the handler runs: so no step could begin from the end
// of the last one.)
template <typename Body>
xla::ffi::Error ParallelSteps(xla::ffi::ThreadPool& pool, int64_t steps, int64_t units, Body body) {
  struct Work {
    Work(Body body, int64_t steps, int64_t units, int64_t threads)
        : body(std::move(body)), units(units), all(steps * units), threads(threads) {}

    // The units of a step are dealt out from as many places as there are threads: two that work at
    // the same time rarely meet in one huge page.
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
    alignas(64) std::atomic<int64_t> next{0};  // each in a cache line of its own
    alignas(64) std::atomic<int64_t> done{0};
    std::atomic<bool> failed{false};
    xla::ffi::Error error;  // the first; to be read when all is done
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

}  // namespace jaxkernels

#endif  // JAXKERNELS_CORE_PARALLEL_FOR_H_
