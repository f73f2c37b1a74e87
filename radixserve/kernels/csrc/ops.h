// The operations of a `Program`, each checked against its arrays when it is made.
//
// Every function throws std::invalid_argument, which names the operation and the array that does
// not fit. `cap` below is the capacity: rows that an array has room for.
#pragma once

#include <memory>

#include "kv_pool.h"
#include "program.h"
#include "view.h"

namespace rs {

class PackedLinear;

// out[i] = table[ids[i]]      table [V, H] f32|bf16, ids [cap] i64, out [cap, H] f32
void add_embed(Program& program, const View& table, const View& ids, const View& out);

// x, out [cap, W] or [cap, heads, D] f32, weight [W] or [D] f32|bf16 (a copy is kept)
void add_rms_norm(Program& program, const View& x, const View& weight, float eps, const View& out);

using Weights = std::shared_ptr<const PackedLinear>;

// x [cap, K] f32, out [cap, N] f32
void add_linear(Program& program, const View& x, Weights weights, const View& out, bool is_added);
// x [cap, K] f32, out [cap, N / 2] f32
void add_linear_swiglu(Program& program, const View& x, Weights weights, const View& out);

// x [cap, heads, D] f32 in place, positions [cap] i64, cos and sin [P, D / 2] f32
void add_rope(Program& program, const View& x, const View& positions, const View& cos,
              const View& sin);

// k, v [cap, heads, D] f32, slots [cap] i64; slot = block * size + offset
void add_write_kv(Program& program, const View& k, const View& v, const View& slots,
                  const KVPool& pool);

}  // namespace rs
