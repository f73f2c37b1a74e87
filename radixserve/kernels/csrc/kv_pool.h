// `KVPool`: the arrays of one layer's K and V, whichever way they lie.
#pragma once

#include <cstdint>

#include "checks.h"
#include "view.h"

namespace rs {

// K and V are [blocks, size, heads, D] of float32, bfloat16 or int8. Only int8 has scales, float32
// [blocks, size, heads, 1]: a token's head is its numbers times its scale.
struct KVPool {
  View k, v, k_scale, v_scale;  // scales of rank 0 where there are none

  bool has_scales() const { return k.dtype == DType::int8; }
  // Throws std::invalid_argument unless the arrays fit together, for this many heads of this size.
  void check(const Checks& checks, int64_t num_heads, int64_t head_dim) const;
};

}  // namespace rs
