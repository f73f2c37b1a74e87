// `for_rows`: work on rows that do not depend on one another, in tasks that are worth a thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "threads.h"

namespace rs {

// Runs fn(row) for each of `rows` rows. `row_work`: numbers that one row reads or writes.
template <class Fn>
void for_rows(int64_t rows, int64_t row_work, Fn&& fn) {
  constexpr int64_t kTaskWork = 16384;  // some microseconds: more than waking a thread costs
  const int64_t per_task = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, row_work));
  parallel_for((rows + per_task - 1) / per_task, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * per_task);
    for (int64_t row = task * per_task; row < end; ++row) fn(row);
  });
}

}  // namespace rs
