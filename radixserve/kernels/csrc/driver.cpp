// Runs the kernels on random shapes, without Python: for sanitizers.
//
//   driver [rounds]     for every variant, with one thread and with three
#include "driver.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "bfloat16.h"
#include "threads.h"
#include "variants.h"

namespace rs {

View Random::array(DType dtype, std::initializer_list<int64_t> shape, int64_t limit) {
  View view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  int d = 0;
  for (const int64_t size : shape) view.shape[d++] = size;
  int64_t size = 1;
  for (d = view.rank - 1; d >= 0; --d) {
    view.strides[d] = size;
    size *= view.shape[d];
  }
  memory_.push_back(std::make_unique<char[]>(static_cast<size_t>(size * size_of(dtype))));
  view.data = memory_.back().get();
  std::uniform_real_distribution<float> reals(-1.0f, 1.0f);
  for (int64_t i = 0; i < size; ++i) {
    if (dtype == DType::float32) view.as<float>()[i] = reals(engine_);
    if (dtype == DType::float64) view.as<double>()[i] = 0.5 + 0.5 * reals(engine_);
    if (dtype == DType::bfloat16) view.as<uint16_t>()[i] = narrowed(reals(engine_));
    if (dtype == DType::int8) view.as<int8_t>()[i] = static_cast<int8_t>(number(-127, 127));
    if (dtype == DType::int32) view.as<int32_t>()[i] = static_cast<int32_t>(number(0, limit - 1));
    if (dtype == DType::int64) view.as<int64_t>()[i] = number(0, limit - 1);
  }
  return view;
}

View Random::columns(const View& matrix, int64_t begin, int64_t end) {
  View view = matrix;
  view.data = matrix.as<char>() + begin * size_of(matrix.dtype);
  view.shape[1] = end - begin;
  return view;
}

View Random::as_heads(const View& matrix, int64_t heads) {
  View view = matrix;
  view.rank = 3;
  view.shape[1] = heads;
  view.shape[2] = matrix.shape[1] / heads;
  view.strides[1] = view.shape[2];
  view.strides[2] = 1;
  return view;
}

void expect(bool is_true, const char* what) {
  if (!is_true) throw std::runtime_error(what);
}

void drive_threads() {
  std::atomic<int> sum{0};
  for (int tasks = 0; tasks < 40; ++tasks)
    parallel_for(tasks, [&](int64_t) { parallel_for(2, [&](int64_t) { ++sum; }); });
  expect(sum == 40 * 39, "each task runs once");

  bool has_thrown = false;
  try {
    parallel_for(9, [](int64_t task) { expect(task != 5, "thrown by a task"); });
  } catch (const std::runtime_error&) {
    has_thrown = true;
  }
  expect(has_thrown, "what a task throws reaches the caller");

  sum = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&] {
      for (int job = 0; job < 100; ++job) parallel_for(5, [&](int64_t) { ++sum; });
    });
  for (auto& caller : callers) caller.join();
  expect(sum == 1500, "callers take turns");
}

}  // namespace rs

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  try {
    for (const std::string& name : rs::variant_names()) {
      rs::set_variant(name);
      for (const int threads : {1, 3}) {
        rs::set_num_threads(threads);
        rs::drive_threads();
        for (int round = 0; round < rounds; ++round) {
          rs::Random random(static_cast<uint32_t>(round));
          rs::drive_linears(random);
          rs::drive_rows(random);
          rs::drive_attention(random);
        }
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "driver: %s\n", error.what());
    return 1;
  }
  std::puts("driver: all done");
  return 0;
}
