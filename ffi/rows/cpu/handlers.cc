// FFI handlers of the row operations on the CPU.
//
// Owns: the path from an XLA call to the threads of its pool. Must not know: the checks of a call
// (read_call.h), how a row or a segment is computed, how threads take work (parallel_for.h).
#include <cstdint>
#include <memory>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "core/parallel_for.h"
#include "rows/cpu/kernels.h"
#include "rows/read_call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

constexpr int64_t kHugePageBytes = 2 * 1024 * 1024;

// Requests huge pages for a buffer. XLA takes a fresh buffer from the operating system for every
// large result, and the first write to each page is a page fault. Linux by default gives huge pages
// on request only ("madvise"); with 4 KiB pages the faults cost more than the arithmetic.
// EPYC (Zen 5, 2 cores) f32 softmax 4096 x 4096, ms (2026-11): 33, advised 11 (at best 22, 8)
// EPYC (Zen 4, 2 cores) f32 loss of 2^21 x 4, ms (2026-11): residuals not advised 33, advised 16
void AdviseHugePages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePageBytes - 1) &
                     ~static_cast<uintptr_t>(kHugePageBytes - 1);
  const auto end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) &
                   ~static_cast<uintptr_t>(kHugePageBytes - 1);
  // This is advice only: if it is refused, the buffer works as before.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Splits the segments of long rows over the threads of the pool, one step after the other.
ffi::Error RunSharedRows(ffi::ThreadPool& pool, const RowCall& call) {
  const int64_t units = call.arrays.rows * SegmentCount(call.arrays.cols);
  std::vector<SegmentStatistics> segments(units);
  const std::unique_ptr<double[]> room(new double[RoomToShare(call) / sizeof(double) + 1]);
  constexpr int kEnd = static_cast<int>(RowStep::kResults) + 1;
  const int first = static_cast<int>(FirstStep(call.operation, call.dtype));
  return ParallelSteps(pool, kEnd - first, units, [&](int64_t step, int64_t unit) {
    const auto of_row = static_cast<RowStep>(first + step);
    RunRows(call, {unit, unit + 1, of_row, segments.data(), room.get()});
  });
}

// Splits the rows of a call over the threads of the pool.
ffi::Error Run(ffi::ThreadPool& pool, const RowCall& call) {
  const RowArrays& arrays = call.arrays;
  const int64_t width = ByteWidth(call.dtype);
  if (arrays.out != nullptr) {
    AdviseHugePages(arrays.out, arrays.rows * arrays.cols * ByteWidth(call.result_dtype));
  }
  if (call.scalars_out.data != nullptr) {
    const int64_t of_scalar = call.scalars_out.wide ? sizeof(float) : width;
    const int stores = TraitsOf(call.operation).Stores();
    AdviseHugePages(call.scalars_out.data, arrays.rows * stores * of_scalar);
  }
  if (arrays.rows < pool.num_threads() && MayShareRows(call)) return RunSharedRows(pool, call);
  const int64_t row_bytes = arrays.cols * width * (InputsOf(call.operation) + 1);
  return ParallelFor(pool, arrays.rows, row_bytes,
                     [&](int64_t begin, int64_t end) { RunRows(call, {begin, end}); });
}

// A handler that reads its call with kRead.
template <auto kRead>
constexpr auto kHandler = [](ffi::ThreadPool pool, auto... arguments) {
  RowCall call;
  const ffi::Error error = kRead(arguments..., &call);
  return error.failure() ? error : Run(pool, call);
};

auto OnPool() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>(); }

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsRowsCpu, kHandler<ReadWhole>, BindWhole(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsRowStatisticsCpu, kHandler<ReadStatistics>,
                              BindStatistics(OnPool()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsRowFinishCpu, kHandler<ReadFinish>, BindFinish(OnPool()));

}  // namespace jaxkernels
