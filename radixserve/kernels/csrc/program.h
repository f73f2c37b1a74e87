// `Program`: a tape of operations over fixed arrays, run from end to end for any number of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace rs {

// One recorded operation. Shapes were checked when it was made; `run` checks only what the arrays
// hold (ids, slots, positions) and throws std::out_of_range before it has written anything.
struct Op {
  virtual ~Op() = default;
  virtual void run(int64_t rows) = 0;
};

class Program {
 public:
  // Appends an op that can do at most `capacity` rows.
  void add(std::unique_ptr<Op> op, int64_t capacity);
  // Throws std::invalid_argument unless 0 <= rows <= capacity of every op. Two threads that run
  // one program take turns.
  void run(int64_t rows);
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return static_cast<int64_t>(ops_.size()); }

 private:
  std::vector<std::unique_ptr<Op>> ops_;
  int64_t capacity_ = INT64_MAX;
  std::mutex running_;
};

}  // namespace rs
