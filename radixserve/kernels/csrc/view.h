// `View`: a strided array in memory that somebody else owns.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace rs {

enum class DType { float32, float64, bfloat16, int8, uint8, int32, int64 };

inline int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::bfloat16: return 2;
    default: return 1;
  }
}

inline const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::bfloat16: return "bfloat16";
    case DType::int8: return "int8";
    case DType::uint8: return "uint8";
    case DType::int32: return "int32";
    default: return "int64";
  }
}

// Rank 1 to 4. Strides are in elements; the innermost one is 1.
struct View {
  void* data = nullptr;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};
  int rank = 0;
  DType dtype = DType::float32;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Where row i (along the first dimension) begins.
  template <class T>
  T* row(int64_t i) const {
    return as<T>() + i * strides[0];
  }
  // Whether each row is one run of memory, so that the dimensions after the first can be flattened.
  bool has_dense_rows() const {
    int64_t run = 1;
    for (int d = rank - 1; d > 0; --d) {
      if (shape[d] != 1 && strides[d] != run) return false;
      run *= shape[d];
    }
    return true;
  }
  // Elements a row.
  int64_t width() const {
    int64_t run = 1;
    for (int d = 1; d < rank; ++d) run *= shape[d];
    return run;
  }
  // "float32[8, 64]"
  std::string describe() const {
    std::string text = name_of(dtype);
    for (int d = 0; d < rank; ++d) text += (d ? ", " : "[") + std::to_string(shape[d]);
    return text + "]";
  }
};

}  // namespace rs
