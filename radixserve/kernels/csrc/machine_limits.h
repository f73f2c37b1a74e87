// What this machine can do at most: the floors that the kernels are measured against.
#pragma once

#include <cstdint>

namespace rs {

// Bytes a second, read from memory in order by all threads; `num_bytes` should be several times the
// last cache. The best of a few passes.
double measure_read_bandwidth(int64_t num_bytes);

// Floating-point operations a second of all threads, in multiply-adds on registers.
double measure_peak_flops();

struct LimitsKernels {
  float (*sum)(const float* values, int64_t size);     // size a multiple of 128
  float (*multiply_add)(float value, int64_t rounds);  // kChains chains of W lanes, `rounds` long
  int flops_per_round;
};

}  // namespace rs
