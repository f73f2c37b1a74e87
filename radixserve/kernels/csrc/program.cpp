#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "threads.h"

namespace rs {
namespace {

// As much as the second-level caches hold beside what is being worked on.
constexpr int64_t kMostWished = 256 << 10;

}  // namespace

void Program::add(std::unique_ptr<Op> op, int64_t capacity) {
  const std::lock_guard lock(running_);
  Account* const account = account_of(op->name());
  ops_.push_back({std::move(op), account});
  capacity_ = std::min(capacity_, capacity);
}

Program::Account* Program::account_of(const char* name) {
  for (Account& account : accounts_)
    if (account.name == name) return &account;
  Account& made = accounts_.emplace_back();
  made.name = name;
  return &made;
}

// A look at the clock takes some 30 ns, an operation microseconds at least.
void Program::run(int64_t rows) {
  using Clock = std::chrono::steady_clock;
  const std::lock_guard lock(running_);
  if (rows < 0 || rows > capacity_)
    throw std::invalid_argument("run: rows must be 0 to " + std::to_string(capacity_) + ", got " +
                                std::to_string(rows));
  auto begin = Clock::now();
  wish_for_next(0);
  for (size_t place = 0; place < ops_.size(); ++place) {
    const Entry& entry = ops_[place];
    if (!entry.op->reads().empty()) wish_for_next(place + 1);
    entry.op->run(rows);
    const auto end = Clock::now();
    entry.account->nanoseconds.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count(),
        std::memory_order_relaxed);
    begin = end;
  }
}

// While small operations pass, and at the end of large ones, memory would be idle otherwise.
void Program::wish_for_next(size_t place) const {
  while (place < ops_.size() && ops_[place].op->reads().empty()) ++place;
  if (place == ops_.size()) return wish_for(nullptr, 0);
  const std::span<const std::byte> next = ops_[place].op->reads();
  wish_for(next.data(), std::min(kMostWished, static_cast<int64_t>(next.size())));
}

std::vector<std::pair<std::string, double>> Program::seconds() const {
  std::vector<std::pair<std::string, double>> all;
  for (const Account& account : accounts_)
    all.emplace_back(account.name,
                     1e-9 * static_cast<double>(
                                account.nanoseconds.load(std::memory_order_relaxed)));
  return all;
}

}  // namespace rs
