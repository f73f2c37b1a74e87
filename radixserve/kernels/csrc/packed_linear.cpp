#include "packed_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bfloat16.h"
#include "threads.h"

namespace rs {
namespace {

void refuse(const std::string& message) {
  throw std::invalid_argument("PackedLinear: " + message);
}

bool is_float(DType dtype) { return dtype == DType::float32 || dtype == DType::bfloat16; }

void check(const View& weight, DType dtype, const View* bias) {
  if (weight.rank != 2 || !is_float(weight.dtype) || weight.shape[0] < 1 || weight.shape[1] < 1)
    refuse("weight must be float32 or bfloat16 [N, K], got " + weight.describe());
  if (!is_float(dtype) && dtype != DType::int8)
    refuse(std::string("dtype must be float32, bfloat16 or int8, got ") + name_of(dtype));
  if (bias == nullptr) return;
  if (bias->rank != 1 || !is_float(bias->dtype) || bias->shape[0] != weight.shape[0])
    refuse("bias must be float32 or bfloat16 [" + std::to_string(weight.shape[0]) + "], got " +
           bias->describe());
}

float element(const View& weight, int64_t n, int64_t k) {
  if (weight.dtype == DType::float32) return weight.row<const float>(n)[k];
  return widened(weight.row<const uint16_t>(n)[k]);
}

}  // namespace

PackedLinear::PackedLinear(const View& weight, DType dtype, const View* bias)
    : num_outputs_((check(weight, dtype, bias), weight.shape[0])),
      num_inputs_(weight.shape[1]),
      dtype_(dtype),
      data_(static_cast<size_t>(num_panels() * panel_bytes())) {
  if (dtype == DType::int8) scales_.assign(static_cast<size_t>(num_panels() * kPanel), 0.0f);
  if (bias != nullptr) {
    bias_.assign(static_cast<size_t>(num_panels() * kPanel), 0.0f);
    for (int64_t n = 0; n < num_outputs_; ++n)
      bias_[n] = bias->dtype == DType::float32 ? bias->as<const float>()[n]
                                               : widened(bias->as<const uint16_t>()[n]);
  }
  parallel_for(num_panels(), [&](int64_t panel) {
    if (dtype_ == DType::int8)
      quantize_panel(weight, panel);
    else
      pack_panel(weight, panel);
  });
}

int64_t PackedLinear::num_bytes() const {
  const size_t floats = scales_.size() + bias_.size();
  return static_cast<int64_t>(data_.num_bytes() + floats * sizeof(float));
}

void PackedLinear::pack_panel(const View& weight, int64_t panel) {
  std::byte* const to = data_.data() + panel * panel_bytes();
  const int64_t first = panel * kPanel;
  const int64_t count = std::min(kPanel, num_outputs_ - first);
  for (int64_t k = 0; k < num_inputs_; ++k) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t place = k * kPanel + j;
      if (dtype_ == weight.dtype && dtype_ == DType::bfloat16)
        reinterpret_cast<uint16_t*>(to)[place] = weight.row<const uint16_t>(first + j)[k];
      else if (dtype_ == DType::bfloat16)
        reinterpret_cast<uint16_t*>(to)[place] = narrowed(element(weight, first + j, k));
      else
        reinterpret_cast<float*>(to)[place] = element(weight, first + j, k);
    }
  }
}

void PackedLinear::quantize_panel(const View& weight, int64_t panel) {
  auto* const to = reinterpret_cast<int8_t*>(data_.data() + panel * panel_bytes());
  const int64_t first = panel * kPanel;
  const int64_t count = std::min(kPanel, num_outputs_ - first);
  for (int64_t j = 0; j < count; ++j) {
    float largest = 0.0f;
    for (int64_t k = 0; k < num_inputs_; ++k) {
      const float magnitude = std::fabs(element(weight, first + j, k));
      if (!std::isfinite(magnitude))
        refuse("row " + std::to_string(first + j) + " is not finite and cannot be int8");
      largest = std::max(largest, magnitude);
    }
    const bool is_zero = largest < 1e-30f;  // below, 127 / largest may be infinite
    scales_[first + j] = is_zero ? 0.0f : largest / 127.0f;
    const float inverse = is_zero ? 0.0f : 127.0f / largest;
    for (int64_t k = 0; k < num_inputs_; ++k) {
      const float level = std::nearbyint(element(weight, first + j, k) * inverse);
      to[(k / 2 * kPanel + j) * 2 + k % 2] =
          static_cast<int8_t>(std::clamp(level, -127.0f, 127.0f));
    }
  }
}

}  // namespace rs
