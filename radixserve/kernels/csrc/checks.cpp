#include "checks.h"

#include <algorithm>
#include <stdexcept>

namespace rs {
namespace {

std::string joined(std::initializer_list<DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : " or ") + std::string(name_of(dtype));
  return text;
}

std::string joined(std::initializer_list<int64_t> shape) {
  std::string text;
  for (const int64_t size : shape)
    text += (text.empty() ? "[" : ", ") + (size < 0 ? std::string("any") : std::to_string(size));
  return text + "]";
}

bool fits(const View& view, std::initializer_list<DType> dtypes,
          std::initializer_list<int64_t> shape) {
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) return false;
  if (view.rank != static_cast<int>(shape.size())) return false;
  return std::equal(shape.begin(), shape.end(), view.shape.begin(),
                    [](int64_t wanted, int64_t size) { return wanted < 0 || wanted == size; });
}

// One past the last byte of a view.
const char* end_of(const View& view) {
  int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] == 0) return view.as<const char>();
    last += (view.shape[d] - 1) * view.strides[d];
  }
  return view.as<const char>() + (last + 1) * size_of(view.dtype);
}

bool is_equal(const View& a, const View& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank && a.strides == b.strides;
}

// Whether no byte of one is a byte of the other: one lies behind the other, or both are bands of
// the columns of one buffer.
bool is_apart(const View& a, const View& b) {
  const char *a_begin = a.as<const char>(), *b_begin = b.as<const char>();
  if (end_of(a) <= b_begin || end_of(b) <= a_begin) return true;
  const int64_t pitch = a.strides[0] * size_of(a.dtype);
  if (pitch != b.strides[0] * size_of(b.dtype) || pitch <= 0) return false;
  const int64_t a_width = a.width() * size_of(a.dtype), b_width = b.width() * size_of(b.dtype);
  const int64_t shift = ((b_begin - a_begin) % pitch + pitch) % pitch;
  return a.has_dense_rows() && b.has_dense_rows() && a_width <= shift && shift + b_width <= pitch;
}

}  // namespace

void Checks::refuse(const std::string& message) const {
  throw std::invalid_argument(op_ + ": " + message);
}

void Checks::array(const char* name, const View& view, std::initializer_list<DType> dtypes,
                   std::initializer_list<int64_t> shape) const {
  if (!fits(view, dtypes, shape))
    refuse(std::string(name) + " must be " + joined(dtypes) + joined(shape) + ", got " +
           view.describe());
}

void Checks::dense_rows(const char* name, const View& view) const {
  if (!view.has_dense_rows())
    refuse(std::string(name) + " must be dense within a row, got " + view.describe() +
           " with strides");
}

void Checks::apart_or_equal(const char* a_name, const View& a, const char* b_name,
                            const View& b) const {
  if (!is_equal(a, b)) apart(a_name, a, b_name, b);
}

void Checks::apart(const char* a_name, const View& a, const char* b_name, const View& b) const {
  if (!is_apart(a, b))
    refuse(std::string(a_name) + " and " + b_name + " must not share memory");
}

void Checks::indices(const char* name, const View& values, int64_t rows, int64_t limit) const {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t value = values.as<const int64_t>()[i * values.strides[0]];
    if (value < 0 || value >= limit)
      throw std::out_of_range(op_ + ": " + name + "[" + std::to_string(i) + "] is " +
                              std::to_string(value) + ", must be 0 to " +
                              std::to_string(limit - 1));
  }
}

}  // namespace rs
