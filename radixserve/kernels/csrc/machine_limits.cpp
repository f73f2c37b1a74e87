#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "huge_buffer.h"
#include "threads.h"
#include "variants.h"

namespace rs {
namespace {

constexpr int kPasses = 5;

// Seconds of the quickest of some passes of fn(task) over all tasks.
template <class Fn>
double quickest(int64_t num_tasks, Fn&& fn) {
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(num_tasks, fn);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

// Keeps a result from being optimised away.
std::atomic<float> g_sink{0.0f};

}  // namespace

double measure_read_bandwidth(int64_t num_bytes) {
  constexpr int64_t kTaskBytes = 512 << 10;
  const int64_t tasks = std::max<int64_t>(1, num_bytes / kTaskBytes);
  const HugeBuffer buffer(static_cast<size_t>(tasks * kTaskBytes));
  parallel_for(tasks, [&](int64_t task) {  // pages that were never written are all one page
    std::fill_n(buffer.data() + task * kTaskBytes, kTaskBytes, std::byte{0});
  });
  const LimitsKernels& kernels = *variant().limits;
  const double seconds = quickest(tasks, [&](int64_t task) {
    const auto* const values = reinterpret_cast<const float*>(buffer.data() + task * kTaskBytes);
    g_sink = kernels.sum(values, kTaskBytes / static_cast<int64_t>(sizeof(float)));
  });
  return static_cast<double>(tasks * kTaskBytes) / seconds;
}

double measure_peak_flops() {
  constexpr int64_t kRounds = 200'000;
  const int64_t tasks = 16 * num_threads();
  const LimitsKernels& kernels = *variant().limits;
  const double seconds = quickest(
      tasks, [&](int64_t task) { g_sink = kernels.multiply_add(1e-3f * task, kRounds); });
  return static_cast<double>(tasks * kRounds * kernels.flops_per_round) / seconds;
}

}  // namespace rs
