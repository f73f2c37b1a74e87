// The next token of each row, by its own rule:
//
//   weights e^((logit - best) / temperature); best itself where the temperature is next to 0
//   those at least min_p of the largest, of them the top_k largest, of them the fewest that
//   reach top_p of the sum; equal weights: the lower id stays
//   ascending by id, the first whose running sum exceeds u of the total
#pragma once

#include <cstdint>

#include "view.h"

namespace rs {

// What `draw` gives in place of an id.
constexpr int64_t kNothingLeft = -1;  // every logit is -inf
constexpr int64_t kNotFinite = -2;    // there is a NaN or +inf

struct DrawRules {
  View temperature, min_p;  // [cap] f32
  View top_k;               // [cap] i64; 0: all
  View top_p, u;            // [cap] f64; 1: all; [0, 1)
};

// logits [cap, V] f32, of which [0, limit) are looked at; out_ids [cap] i64. For `rows` rows.
// Throws std::invalid_argument if the arrays, `rows` or `limit` do not fit.
void draw(const View& logits, int64_t rows, int64_t limit, const DrawRules& rules,
          const View& out_ids);

}  // namespace rs
