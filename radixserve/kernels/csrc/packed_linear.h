// `PackedLinear`: the weights of a linear map, in the order in which the kernels read them.
//
//   W [N, K]  ->  panels [N / 16][K][16]        16 outputs side by side, k after k
//                 panels [N / 16][K / 2][16][2] of int8: two k of each output side by side
//
// N, and K of int8, are padded with zeros.
//
// A panel is read from end to end while 16 outputs of some rows are summed, so that weights stream
// through memory in order, whatever the vector's width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "huge_buffer.h"
#include "view.h"

namespace rs {

constexpr int64_t kPanel = 16;

class PackedLinear {
 public:
  // `weight` is float32 or bfloat16; `dtype` float32, bfloat16 or int8. int8 is symmetric, with one
  // scale an output: the largest magnitude of its row becomes 127. Throws std::invalid_argument
  // if the arrays do not fit, or an int8 row is not finite.
  PackedLinear(const View& weight, DType dtype, const View* bias);

  int64_t num_outputs() const { return num_outputs_; }
  int64_t num_inputs() const { return num_inputs_; }
  int64_t num_panels() const { return (num_outputs_ + kPanel - 1) / kPanel; }
  int64_t panel_bytes() const {
    const int64_t padded = dtype_ == DType::int8 ? (num_inputs_ + 1) / 2 * 2 : num_inputs_;
    return padded * kPanel * size_of(dtype_);
  }
  int64_t num_bytes() const;
  DType dtype() const { return dtype_; }

  const void* panels() const { return data_.data(); }
  // All panels.
  std::span<const std::byte> memory() const { return {data_.data(), data_.num_bytes()}; }
  // One an output, padded to whole panels; nullptr where there are none.
  const float* scales() const { return scales_.empty() ? nullptr : scales_.data(); }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  void pack_panel(const View& weight, int64_t panel);
  void quantize_panel(const View& weight, int64_t panel);

  int64_t num_outputs_;
  int64_t num_inputs_;
  DType dtype_;
  HugeBuffer data_;
  std::vector<float> scales_;
  std::vector<float> bias_;
};

}  // namespace rs
