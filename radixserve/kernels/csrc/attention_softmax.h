// Scores become weights: p = e^(score - m).
#pragma once

#include "attention_schedule.h"
#include "simd.h"

namespace rs::RS_VARIANT {

RS_INLINE int num_vectors(int count) { return (count + W - 1) / W; }

// Multiplies each of a line's numbers by its token's scale. Those beyond the tokens that the line sees
// are anything, up to a whole vector.
RS_INLINE void apply_scales(float* line, int visible, const float* scales) {
  for (int i = 0; i < visible; i += W) store(line + i, load(line + i) * load(scales + i));
}

// e^x for x <= 0 to about 1 ulp, 0 below -86, NaN for NaN. Two thirds of the work of `exp`: no
// overflow, and no results below the normal range, which would be lost beside the largest weight, 1.
RS_INLINE F32 exp_of_negative(F32 x) {
  const I32 is_tiny = x < -86.0f;
  F32 shifted;
  const F32 p = exp_of_rest(x, shifted);
  const F32 power = (F32)(((U32)shifted << 23) + (127u << 23));  // 2^n
  return (F32)((I32)(p * power) & ~is_tiny);
}

// The largest of a line's scores. Those beyond the tokens that it sees, up to a whole vector, become
// -inf. A NaN may or may not be found: it will be in the sum of the weights.
RS_INLINE float find_largest(float* scores, int visible) {
  const int columns = num_vectors(visible);
  for (int i = visible; i < columns * W; ++i) scores[i] = -INFINITY;
  F32 most = load(scores);
  for (int c = 1; c < columns; ++c) most = max(load(scores + c * W), most);
  return reduce_max(most);
}

// Replaces a line's scores by weights and returns their sum: lane by lane in ascending order, then
// over the lanes.
RS_INLINE float weigh(float* scores, int visible, float largest) {
  // Where every score is -inf, so that all weights are 0 and the sum tells of it.
  const F32 shift = set1(largest == -INFINITY ? 0.0f : largest);
  F32 sum = zero();
  for (int c = 0; c < num_vectors(visible); ++c) {
    const F32 p = exp_of_negative(load(scores + c * W) - shift);
    store(scores + c * W, p);
    sum += p;
  }
  return reduce_add(sum);
}

}  // namespace rs::RS_VARIANT
