// Compiled once per variant.
#include "elementwise.h"

#include "simd.h"

namespace rs::RS_VARIANT {
namespace {

float sum_of_squares(const float* x, int64_t size) {
  F32 sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= size; i += 4 * W) {
    for (int v = 0; v < 4; ++v) {
      const F32 values = load(x + i + v * W);
      sums[v] = fma(values, values, sums[v]);
    }
  }
  for (; i < size; i += W) {
    const F32 values = load_n(x + i, at_most_w(size - i));
    sums[0] = fma(values, values, sums[0]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
  const float mean = sum_of_squares(x, size) / static_cast<float>(size);
  const F32 factor = set1(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < size; i += W) {
    const int64_t n = at_most_w(size - i);
    store_n(out + i, load_n(x + i, n) * factor * load_n(weight + i, n), n);
  }
}

void rotate(float* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += W) {
    const int64_t n = at_most_w(half - i);
    const F32 x1 = load_n(head + i, n), x2 = load_n(head + half + i, n);
    const F32 c = load_n(cos + i, n), s = load_n(sin + i, n);
    store_n(head + i, fma(x1, c, -(x2 * s)), n);
    store_n(head + half + i, fma(x2, c, x1 * s), n);
  }
}

void widen_bf16(const uint16_t* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; i += W) {
    const int64_t n = at_most_w(size - i);
    store_n(to + i, load_n_bf16(from + i, n), n);
  }
}

void narrow_bf16(const float* from, int64_t size, uint16_t* to) {
  for (int64_t i = 0; i < size; i += W) {
    const int64_t n = at_most_w(size - i);
    store_n_bf16(to + i, load_n(from + i, n), n);
  }
}

float quantize(const float* from, int64_t size, int8_t* to) {
  const float scale = find_reach(from, size) / 127.0f;
  if (!(scale > 0.0f)) {
    for (int64_t i = 0; i < size; ++i) to[i] = 0;
    return scale;
  }
  const F32 most = set1(127.0f), round = set1(kRound);  // a tiny scale is rounded, and x / scale far off
  for (int64_t i = 0; i < size; i += W) {
    const int64_t count = at_most_w(size - i);
    F32 codes = load_n(from + i, count) / set1(scale);
    codes = select(codes > most, most, select(codes < -most, -most, codes));
    const I32 whole = (I32)(codes + round) - (I32)round;
    for (int64_t lane = 0; lane < count; ++lane) to[i + lane] = static_cast<int8_t>(whole[lane]);
  }
  return scale;
}

// Whether any of the values is NaN, and the largest of the others.
bool scan(const float* x, int64_t size, float& largest) {
  F32 best[4];
  I32 is_nan = {};
  for (auto& each : best) each = set1(-INFINITY);
  int64_t i = 0;
  for (; i + 4 * W <= size; i += 4 * W) {
    for (int v = 0; v < 4; ++v) {
      const F32 values = load(x + i + v * W);
      is_nan |= values != values;
      best[v] = max(values, best[v]);
    }
  }
  largest = reduce_max(max(max(best[0], best[1]), max(best[2], best[3])));
  bool has_nan = false;
  for (int lane = 0; lane < W; ++lane) has_nan |= is_nan[lane] != 0;
  for (; i < size; ++i) {
    has_nan |= x[i] != x[i];
    largest = x[i] > largest ? x[i] : largest;
  }
  return has_nan;
}

int64_t argmax(const float* x, int64_t size) {
  float largest;
  const bool has_nan = scan(x, size, largest);
  for (int64_t i = 0; i < size; ++i)
    if (has_nan ? x[i] != x[i] : x[i] == largest) return i;
  return 0;
}

void weigh(const float* x, int64_t size, float best, float temperature, float* weights) {
  for (int64_t i = 0; i < size; i += W) {
    const int64_t n = at_most_w(size - i);
    store_n(weights + i, exp((load_n(x + i, n) - best) / temperature), n);
  }
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels;
const ElementwiseKernels elementwise_kernels{
    .rms_norm = rms_norm,
    .rotate = rotate,
    .widen_bf16 = widen_bf16,
    .narrow_bf16 = narrow_bf16,
    .quantize = quantize,
    .argmax = argmax,
    .weigh = weigh,
};

}  // namespace rs::RS_VARIANT
