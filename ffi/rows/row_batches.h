// Tile scheduler over rows, for blocks or clusters that process several (tiers block_smem and
// cluster).
//
// Owns: the schedule, for plans and kernels alike. Must not know: when rows are scheduled in
// batches (smem_rules.h), what a row is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace jaxkernels {

// The rows of each worker (a block or cluster). Static schedule: worker w processes row w and every
// `workers`-th row after it, in `rounds` rounds. Batches: the first `workers` workers do so for
// half of the rounds, the next ones for half of the remaining rounds, and so on down to one round.
// Early workers process many rows, so that few workers start; late ones process one, so that all
// end at about the same time. This is factoring (Hummel, Schonberg and Flynn, "Factoring: a method
// for scheduling parallel loops", Communications of the ACM 35(8), 1992). Its speed, but not its
// correctness, relies on workers that start in about their order, each when another has ended.
struct RowBatches {
  int64_t workers = 0;  // per batch
  int64_t rounds = 0;   // of all batches together
  bool halves = false;  // in batches, instead of the static schedule

  int64_t CountWorkers(int64_t rows) const {
    int64_t count = 0;
    for (int64_t left = rounds; left > 0; left -= RoundsOfBatch(left)) {
      count += std::min(rows - (rounds - left) * workers, workers);
    }
    return count;
  }

  // The rows of worker `worker`, counted over all batches: `first`, first + step, ... below `end`.
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
  // Rounds in the next batch, given the remaining rounds.
  JK_HOST_DEVICE int64_t RoundsOfBatch(int64_t left) const {
    return halves ? (left + 1) / 2 : left;
  }
};

}  // namespace jaxkernels
