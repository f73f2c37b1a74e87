// Compiled once per variant.
#include "machine_limits.h"

#include "simd.h"

namespace rs::RS_VARIANT {
namespace {

constexpr int kChains = 12;  // more than a multiply-add's latency times its ports

float sum(const float* values, int64_t size) {
  constexpr int kSums = 8;
  F32 sums[kSums] = {};
  for (int64_t i = 0; i < size; i += kSums * W)
    for (int s = 0; s < kSums; ++s) sums[s] = sums[s] + load(values + i + s * W);
  for (int s = 1; s < kSums; ++s) sums[0] = sums[0] + sums[s];
  return reduce_add(sums[0]);
}

float multiply_add(float value, int64_t rounds) {
  F32 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = set1(value + static_cast<float>(c));
  const F32 factor = set1(0.999f), term = set1(value);
  for (int64_t i = 0; i < rounds; ++i)
    for (auto& chain : chains) chain = fma(chain, factor, term);
  for (int c = 1; c < kChains; ++c) chains[0] = chains[0] + chains[c];
  return reduce_add(chains[0]);
}

}  // namespace

extern const LimitsKernels limits_kernels;
const LimitsKernels limits_kernels{
    .sum = sum, .multiply_add = multiply_add, .flops_per_round = 2 * W * kChains};

}  // namespace rs::RS_VARIANT
