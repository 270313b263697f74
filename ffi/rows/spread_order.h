// In which order blocks of the tier `spread` take branches, where one launch finds the statistics
// of many rows and makes their results.
//
// The statistics of `ahead` branches come first. Then statistics and results take turns. In the end
// the other results come, backwards, because the last branches were read last. Between the two
// reads of a branch lie those of `ahead` others, so that the L2 cache still holds it.
#ifndef JAXKERNELS_ROWS_SPREAD_ORDER_H_
#define JAXKERNELS_ROWS_SPREAD_ORDER_H_

#include <cstdint>

#include "core/host_device.h"

namespace jaxkernels {

struct SpreadTask {
  bool finishes;  // whether it makes results
  int64_t branch;
};

struct SpreadOrder {
  int64_t branches;  // of all rows
  int64_t ahead;     // at most `branches`, and at least those of a row

  // Of turn `turn`, of two for each branch.
  JK_HOST_DEVICE SpreadTask TaskOf(int64_t turn) const {
    if (turn < ahead) return {false, turn};
    const int64_t next = turn - ahead, together = branches - ahead;
    if (next >= 2 * together) return {true, branches - 1 - (next - 2 * together)};
    return next % 2 == 0 ? SpreadTask{false, ahead + next / 2} : SpreadTask{true, next / 2};
  }
};

// What blocks count, in scratch.
struct SpreadCounts {
  unsigned* turns;
  unsigned* found;  // of each row: branches whose statistics are found
};

}  // namespace jaxkernels

#endif  // JAXKERNELS_ROWS_SPREAD_ORDER_H_
