// One pool of threads for all kernels: `parallel_for` gives out tasks one by one.
//
// Tasks are taken dynamically, so that a core that another process has taken slows only the tasks
// that it holds. Which thread runs a task must not change its result.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace rs {

// Threads that work on a job, the caller's own included. At least 1; starts and stops the others.
void set_num_threads(int n);
int num_threads();

// 0 for the thread that called parallel_for, 1..num_threads()-1 for the others: names the scratch of
// a task. Scratch belongs to what only one caller runs at a time, such as an op of a Program.
int thread_index();

using TaskCall = void (*)(void* context, int64_t task);
void run_tasks(int64_t num_tasks, TaskCall call, void* context);

// Runs fn(task) for each task in [0, num_tasks), on all threads, and returns when all have ended.
// A call from inside a task runs its tasks in a row. The first exception that a task throws is
// thrown here, after the others have ended.
template <class Fn>
void parallel_for(int64_t num_tasks, Fn&& fn) {
  using Callable = std::remove_reference_t<Fn>;
  run_tasks(
      num_tasks,
      [](void* context, int64_t task) { (*static_cast<Callable*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
}

// Memory that will be read next. While they have nothing else to do, threads ask for it line by line,
// so that it is on its way when the work that reads it begins. Replaces what was wished for before;
// a hint, which costs nothing if it is wrong.
void wish_for(const void* memory, int64_t num_bytes);

}  // namespace rs
