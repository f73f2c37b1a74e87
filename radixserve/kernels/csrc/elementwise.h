// What is done to one row at a time: normalise, rotate, widen, narrow, find the largest, weigh.
#pragma once

#include <cstdint>

namespace rs {

struct ElementwiseKernels {
  // out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* out);
  // The first half of a head is turned against the second: x1 cos - x2 sin, x2 cos + x1 sin.
  void (*rotate)(float* head, const float* cos, const float* sin, int64_t half);
  void (*widen_bf16)(const uint16_t* from, int64_t size, float* to);
  void (*narrow_bf16)(const float* from, int64_t size, uint16_t* to);
  // to[i] = from[i] / scale, rounded to the nearest, ties to even, where scale = max |from| / 127 is
  // what is returned. A scale of 0 makes zeros; a value that is not finite makes zeros and a NaN.
  float (*quantize)(const float* from, int64_t size, int8_t* to);
  // The first place of the largest; a NaN is larger than every number. size >= 1.
  int64_t (*argmax)(const float* x, int64_t size);
  // weights[i] = e^((x[i] - best) / temperature)
  void (*weigh)(const float* x, int64_t size, float best, float temperature, float* weights);
};

}  // namespace rs
