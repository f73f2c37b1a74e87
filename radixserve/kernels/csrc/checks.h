// What an operation asks of its arrays; a failed check names the operation and what it got.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "view.h"

namespace rs {

class Checks {
 public:
  explicit Checks(std::string op) : op_(std::move(op)) {}

  // Throws std::invalid_argument: "op: message".
  [[noreturn]] void refuse(const std::string& message) const;

  // `shape` has -1 where any size will do.
  void array(const char* name, const View& view, std::initializer_list<DType> dtypes,
             std::initializer_list<int64_t> shape) const;
  // That the dimensions after the first can be flattened.
  void dense_rows(const char* name, const View& view) const;
  // That rows written through one cannot be read, half done, through the other: the arrays are the
  // same, element by element, or share no memory.
  void apart_or_equal(const char* a_name, const View& a, const char* b_name, const View& b) const;
  void apart(const char* a_name, const View& a, const char* b_name, const View& b) const;

  // That the first `rows` of `values` (int64) are in [0, limit). Throws std::out_of_range.
  void indices(const char* name, const View& values, int64_t rows, int64_t limit) const;

 private:
  std::string op_;
};

}  // namespace rs
