#include "program.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace rs {

void Program::add(std::unique_ptr<Op> op, int64_t capacity) {
  const std::lock_guard lock(running_);
  ops_.push_back(std::move(op));
  capacity_ = std::min(capacity_, capacity);
}

void Program::run(int64_t rows) {
  const std::lock_guard lock(running_);
  if (rows < 0 || rows > capacity_)
    throw std::invalid_argument("run: rows must be 0 to " + std::to_string(capacity_) + ", got " +
                                std::to_string(rows));
  for (const auto& op : ops_) op->run(rows);
}

}  // namespace rs
