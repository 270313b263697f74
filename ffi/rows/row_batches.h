// Which rows a block or cluster takes, where it takes several (tiers block_smem and cluster).
//
// Owns: the schedule, for plans and kernels alike. Must not know: which rows go by turns and which
// in batches (smem_rules.h), what a row is.
#ifndef JAXKERNELS_ROWS_ROW_BATCHES_H_
#define JAXKERNELS_ROWS_ROW_BATCHES_H_

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace jaxkernels {

// Rows for workers, which are blocks or clusters. By fixed turns: worker w takes row w and every
// `workers`-th one from there on, in `rounds` rounds. In batches: the first `workers` of them do so
// for half of the rounds, the next ones for half of those that are left, and so on down to one: at
// first many rows each, so that few workers start, at last one, so that all end at about the same
// time. This is factoring (Hummel, Schonberg and Flynn, "Factoring: a method for scheduling
// parallel loops", Communications of the ACM 35(8), 1992). It relies on workers that start in about
// their order, each where another has ended; but for speed alone.
struct RowBatches {
  int64_t workers = 0;  // of each batch
  int64_t rounds = 0;   // of all batches
  bool halves = false;  // in batches, instead of by fixed turns

  // Of all batches together.
  int64_t CountWorkers(int64_t rows) const {
    int64_t count = 0;
    for (int64_t left = rounds; left > 0; left -= RoundsOfBatch(left)) {
      count += std::min(rows - (rounds - left) * workers, workers);
    }
    return count;
  }

  // The rows of worker `worker`, counted over all batches: `first`, and on in steps of `step`
  // before `end`.
  struct Rows {
    int64_t first, end, step;
  };
  JK_HOST_DEVICE Rows RowsOf(int64_t worker, int64_t rows) const {
    int64_t left = rounds;
    for (; worker >= workers; worker -= workers) left -= RoundsOfBatch(left);
    const int64_t begin = (rounds - left) * workers;
    const int64_t end = begin + RoundsOfBatch(left) * workers;
    return {begin + worker, end < rows ? end : rows, workers};
  }

 private:
  // Where so many are left.
  JK_HOST_DEVICE int64_t RoundsOfBatch(int64_t left) const {
    return halves ? (left + 1) / 2 : left;
  }
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_ROW_BATCHES_H_
