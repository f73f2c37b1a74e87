// `Program`: a tape of operations over fixed arrays, run from end to end for any number of rows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rs {

// One recorded operation. Shapes were checked when it was made; `run` checks only what the arrays
// hold (ids, slots, positions) and throws std::out_of_range before it has written anything.
struct Op {
  virtual ~Op() = default;
  virtual void run(int64_t rows) = 0;
  // What it is called where time is accounted for.
  virtual const char* name() const = 0;
  // The memory that it reads from its beginning on, whatever it is run with.
  virtual std::span<const std::byte> reads() const { return {}; }
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
  // Seconds spent in the operations of each name, in all runs so far. A run may be under way.
  std::vector<std::pair<std::string, double>> seconds() const;

 private:
  struct Account {
    std::string name;
    std::atomic<int64_t> nanoseconds{0};
  };
  struct Entry {
    std::unique_ptr<Op> op;
    Account* account;
  };
  Account* account_of(const char* name);
  void wish_for_next(size_t place) const;

  std::vector<Entry> ops_;
  std::deque<Account> accounts_;
  int64_t capacity_ = INT64_MAX;
  std::mutex running_;
};

}  // namespace rs
