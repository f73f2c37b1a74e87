#include "kv_pool.h"

#include <string>
#include <utility>

namespace rs {

void KVPool::check(const Checks& checks, int64_t num_heads, int64_t head_dim) const {
  checks.array("k_pool", k, {DType::float32, DType::bfloat16, DType::int8},
               {-1, -1, num_heads, head_dim});
  checks.array("v_pool", v, {k.dtype}, {k.shape[0], k.shape[1], num_heads, head_dim});
  for (const auto& [name, scale] : {std::pair("k_scale", &k_scale), std::pair("v_scale", &v_scale)}) {
    if (has_scales() != (scale->rank != 0))
      checks.refuse(std::string(name) + " belongs to int8 and to nothing else, got k_pool " +
                    k.describe());
    if (has_scales())
      checks.array(name, *scale, {DType::float32}, {k.shape[0], k.shape[1], num_heads, 1});
  }
}

}  // namespace rs
