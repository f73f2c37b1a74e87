#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace rs {
namespace {

// A waiting thread spins this long and then sleeps. Longer than the gap between two operations of
// one program, short enough that a core that is not needed, or is wanted by somebody else, is
// given up.
constexpr auto kSpin = std::chrono::microseconds(40);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What `wish_for` was told. Both move without a lock: a thread that sees one without the other asks
// for a few lines in vain, and asking for memory that is not there does no harm.
alignas(64) std::atomic<uintptr_t> g_wished{0};
std::atomic<uintptr_t> g_wished_end{0};

// Asks for a little more of it, or rests.
inline void wait_usefully() {
  constexpr uintptr_t kStep = 512, kLine = 64;
  if (g_wished.load(std::memory_order_relaxed) >= g_wished_end.load(std::memory_order_relaxed))
    return pause();
  const uintptr_t begin = g_wished.fetch_add(kStep, std::memory_order_relaxed);
  for (uintptr_t line = begin; line < begin + kStep; line += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
}

// Returns when `value` is not `seen` any more.
void await_change(const std::atomic<uint32_t>& value, uint32_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != seen) return;
      wait_usefully();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(seen, std::memory_order_acquire);
}

thread_local int t_index = 0;
thread_local bool t_is_in_task = false;

// How a job is handed out without a lock:
//
//   ticket = job number << 32 | tasks taken
//
// A thread reads a job's description and takes a task by raising the ticket with a
// compare-and-swap, which succeeds only if the ticket has not moved since before the reading. A
// description is replaced only when all tasks of its job have ended, and after the ticket was
// closed. So a thread that was put to sleep between reading and taking can take nothing of a later
// job by mistake, and nobody ever waits for a thread that holds no task.
class Pool {
 public:
  explicit Pool(int num_threads) { start(num_threads); }
  ~Pool() { stop(); }

  int size() const { return size_.load(std::memory_order_relaxed); }

  void resize(int num_threads) {
    const std::lock_guard lock(jobs_);
    stop();
    start(num_threads);
  }

  void run(int64_t num_tasks, TaskCall call, void* context) {
    const std::lock_guard lock(jobs_);
    const uint64_t first_ticket = static_cast<uint64_t>(++job_) << 32;
    ticket_.store(first_ticket | kClosed, std::memory_order_release);
    error_ = nullptr;
    call_.store(call, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    num_tasks_.store(static_cast<uint32_t>(num_tasks), std::memory_order_release);
    left_.store(static_cast<uint32_t>(num_tasks), std::memory_order_release);
    ticket_.store(first_ticket, std::memory_order_release);
    signal_.fetch_add(1);
    signal_.notify_all();
    work(job_);
    for (uint32_t left; (left = left_.load(std::memory_order_acquire)) != 0;)
      await_change(left_, left);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  // In a child process made by fork there are no workers: forget them.
  void abandon() {
    for (auto& worker : workers_) worker.release();
    workers_.clear();
  }

 private:
  void start(int num_threads) {
    is_stopping_ = false;
    for (int i = 1; i < num_threads; ++i)
      workers_.push_back(
          std::make_unique<std::thread>(&Pool::serve, this, i, signal_.load()));
    size_ = num_threads;
  }

  void stop() {
    is_stopping_ = true;
    signal_.fetch_add(1);
    signal_.notify_all();
    for (auto& worker : workers_) worker->join();
    workers_.clear();
  }

  void serve(int index, uint32_t seen) {
    t_index = index;
    while (true) {
      await_change(signal_, seen);
      seen = signal_.load(std::memory_order_acquire);
      if (is_stopping_.load(std::memory_order_acquire)) return;
      work(static_cast<uint32_t>(ticket_.load(std::memory_order_acquire) >> 32));
    }
  }

  // Takes tasks of a job until there are none.
  void work(uint32_t job) {
    t_is_in_task = true;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket >> 32) == job) {
      const TaskCall call = call_.load(std::memory_order_acquire);
      void* const context = context_.load(std::memory_order_acquire);
      const auto task = static_cast<uint32_t>(ticket);
      if (task >= num_tasks_.load(std::memory_order_acquire)) break;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      run_one(call, context, task);
      ticket = ticket_.load(std::memory_order_acquire);
    }
    t_is_in_task = false;
  }

  void run_one(TaskCall call, void* context, uint32_t task) {
    try {
      call(context, task);
    } catch (...) {
      const std::lock_guard lock(errors_);
      if (error_ == nullptr) error_ = std::current_exception();
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_all();
  }

  static constexpr uint64_t kClosed = UINT32_MAX;

  std::mutex jobs_;  // held by the caller whose job runs
  std::vector<std::unique_ptr<std::thread>> workers_;
  std::atomic<int> size_{1};
  std::atomic<bool> is_stopping_{false};
  uint32_t job_ = 0;
  std::atomic<TaskCall> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> num_tasks_{0};
  std::mutex errors_;
  std::exception_ptr error_;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};  // changes when there is something to do
  alignas(64) std::atomic<uint32_t> left_{0};    // tasks that have not ended
};

int usable_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// Made at first use and never destroyed, so that a thread that still computes when the process
// exits finds it.
std::atomic<Pool*> g_pool{nullptr};
std::mutex g_making;
int g_forked_size = 0;

// A child process made by fork has none of the workers: it makes a pool of its own when it needs
// one. The old one is not destroyed, as threads that are no more may hold its locks.
void forget_workers() {
  Pool* const pool = g_pool.exchange(nullptr);
  if (pool == nullptr) return;
  g_forked_size = pool->size();
  pool->abandon();
}

Pool& pool() {
  if (Pool* const made = g_pool.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(g_making);
  if (g_pool.load() == nullptr) {
    static const int registered = pthread_atfork(nullptr, nullptr, forget_workers);
    (void)registered;
    g_pool = new Pool(g_forked_size > 0 ? g_forked_size : usable_cores());
  }
  return *g_pool.load();
}

}  // namespace

void set_num_threads(int n) {
  if (n < 1 || n > 1024) throw std::invalid_argument("num_threads must be 1 to 1024");
  if (t_is_in_task) throw std::logic_error("threads cannot be changed from inside a task");
  if (n != num_threads()) pool().resize(n);
}

int num_threads() { return pool().size(); }

void wish_for(const void* memory, int64_t num_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  g_wished_end.store(begin + static_cast<uintptr_t>(num_bytes), std::memory_order_relaxed);
  g_wished.store(begin, std::memory_order_relaxed);
}

int thread_index() { return t_index; }

void run_tasks(int64_t num_tasks, TaskCall call, void* context) {
  if (num_tasks > UINT32_MAX) throw std::invalid_argument("too many tasks");
  if (num_tasks > 1 && !t_is_in_task && num_threads() > 1)
    return pool().run(num_tasks, call, context);
  for (int64_t task = 0; task < num_tasks; ++task) call(context, task);
}

}  // namespace rs
