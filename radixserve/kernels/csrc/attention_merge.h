// Merging what a line has seen of earlier chunks with what it sees of the next one.
#pragma once

#include "attention_chunk.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// A line that has seen nothing.
RS_INLINE void clear_line(const Partials& state, int64_t line, int64_t width) {
  state.m[line] = -INFINITY;
  state.l[line] = 0.0f;
  for (int64_t d = 0; d < width; d += W) store(state.acc + line * width + d, zero());
}

// state = merge(state, (m, l, acc)). Chunks come in ascending order, each from its own partial
// result: whether that was stored or has just been computed makes no difference.
RS_INLINE void merge_line(const Partials& state, int64_t line, int64_t width, float m, float l,
                          const float* acc) {
  const float before = state.m[line];
  // Written so that a NaN stays: it is in l, too, and need not be kept in m.
  const float most = m > before ? m : before;
  const float shift = most == -INFINITY ? 0.0f : most;
  const F32 scale = exp_of_negative(set1(before - shift));
  const F32 part = exp_of_negative(set1(m - shift));
  state.m[line] = most;
  state.l[line] = fma(set1(state.l[line]), scale, set1(l) * part)[0];
  float* const sum = state.acc + line * width;
  for (int64_t d = 0; d < width; d += W)
    store(sum + d, fma(load(sum + d), scale, load(acc + d) * part));
}

// out = acc / l, NaN where the line's scores were all -inf or one of them NaN.
template <class T>
RS_INLINE void finish_line(const Partials& state, int64_t line, int64_t width, int head_dim,
                           float* out) {
  const F32 sum = set1(state.l[line]);
  const float* const acc = state.acc + line * width;
  for (int d = 0; d < head_dim; d += kUnit<T> * W) {
    F32 unit[kUnit<T>];
    for (int u = 0; u < kUnit<T>; ++u) unit[u] = load(acc + d + u * W) / sum;
    store_unit_n<T>(out + d, unit, head_dim - d);
  }
}

}  // namespace rs::RS_VARIANT
