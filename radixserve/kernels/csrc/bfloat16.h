// bfloat16 one number at a time: the upper half of a float32.
#pragma once

#include <bit>
#include <cstdint>

namespace rs {

inline float widened(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t narrowed(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace rs
