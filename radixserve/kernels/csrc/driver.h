// What the parts of the driver share: random arrays whose memory ends where they end.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "view.h"

namespace rs {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  int64_t number(int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(engine_);
  }

  // An array that lives as long as this: floats in [-1, 1], doubles in [0, 1), integers in
  // [0, limit).
  View array(DType dtype, std::initializer_list<int64_t> shape, int64_t limit = 1);

  // Columns [begin, end) of a matrix.
  static View columns(const View& matrix, int64_t begin, int64_t end);

  // A matrix [rows, heads * size] as [rows, heads, size].
  static View as_heads(const View& matrix, int64_t heads);

 private:
  std::mt19937 engine_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

// Throws std::runtime_error if `is_true` is false.
void expect(bool is_true, const char* what);

void drive_attention(Random& random);
void drive_linears(Random& random);
void drive_rows(Random& random);
void drive_threads();

}  // namespace rs
