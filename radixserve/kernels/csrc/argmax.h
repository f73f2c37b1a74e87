// The next token of a greedy row: the first place of its largest logit.
#pragma once

#include "view.h"

namespace rs {

// logits [cap, V] f32; out_ids [cap] i64 gets, for each of `rows` rows, the first maximum of
// [0, limit), a NaN being larger than every number; out_finite [cap] u8 whether it is finite.
// Throws std::invalid_argument if the arrays, `rows` or `limit` do not fit.
void argmax(const View& logits, int64_t rows, int64_t limit, const View& out_ids,
            const View& out_finite);

}  // namespace rs
