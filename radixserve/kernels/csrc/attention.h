// Paged attention straight over the block table: what one call is, and the kernels that do it.
#pragma once

#include <cstdint>
#include <memory>

#include "attention_plan.h"
#include "attention_schedule.h"
#include "kv_pool.h"
#include "program.h"
#include "view.h"

namespace rs {

// Where a token's head lies in a pool, or its scale: strides in elements.
struct PoolStrides {
  int64_t block, token, head;
  int64_t dim;  // from one element of a head to the next
};

// One layer's attention over a planned batch. Strides are in elements.
struct AttentionCall {
  const Schedule* schedule;
  const float* q;
  int64_t q_token_stride, q_head_stride;
  float* out;
  int64_t out_token_stride, out_head_stride;
  // Pools of one dtype. K's head_dim is innermost, and K lies as V does; or K's tokens are, and blocks
  // are whole groups.
  const void* k;
  const void* v;
  PoolStrides k_strides, v_strides;
  // Of pools of int8: what a token's K and V of a head are to be multiplied by.
  const float* k_scale;
  const float* v_scale;
  PoolStrides scale_strides;
  int32_t head_dim;  // a multiple of 8
  float scale;
  float* partials;  // of `partial_floats` each

  bool has_token_columns() const { return k_strides.dim != 1; }
};

// One table for each dtype of the pools. A kernel finds its scratch at an address that is a
// multiple of 64; what it holds does not matter.
struct AttentionItems {
  int64_t (*scratch_bytes)(const AttentionCall& call);
  int64_t (*partial_floats)(int32_t head_dim);
  void (*store)(const AttentionCall& call, int64_t item, void* scratch);
  void (*walk)(const AttentionCall& call, int64_t item, void* scratch);
};

struct AttentionKernels {
  AttentionItems float32, bfloat16, int8;
};

// Runs the whole schedule on all threads. `call.partials` is filled in here.
void run_attention(AttentionCall call, AttentionPlan& plan, DType pool_dtype);

// Records an op that attends over whatever batch `plan` holds when it runs; `scale` multiplies the
// scores. q, out [cap, query heads, D] f32.
void add_attention(Program& program, const View& q, const KVPool& pool,
                   std::shared_ptr<AttentionPlan> plan, const View& out, float scale);

}  // namespace rs
