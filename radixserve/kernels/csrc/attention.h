// Paged attention straight over the block table: what one call is, and the kernels that do it.
#pragma once

#include <cstdint>
#include <memory>

#include "attention_plan.h"
#include "attention_schedule.h"
#include "program.h"
#include "view.h"

namespace rs {

// One layer's attention over a planned batch. Strides are in elements.
struct AttentionCall {
  const Schedule* schedule;
  const float* q;
  int64_t q_token_stride, q_head_stride;
  float* out;
  int64_t out_token_stride, out_head_stride;
  const void* k;  // pools of one layout, float32 or bfloat16
  const void* v;
  int64_t block_stride, token_stride, head_stride;
  int32_t head_dim;  // a multiple of 8
  float scale;
  float* partials;  // of `partial_floats` each
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
  AttentionItems float32, bfloat16;
};

// Runs the whole schedule on all threads. `call.partials` is filled in here.
void run_attention(AttentionCall call, AttentionPlan& plan, DType pool_dtype);

// Records an op that attends over whatever batch `plan` holds when it runs; scale multiplies the
// scores. q, out [cap, query heads, D] f32; pools [blocks, size, KV heads, D] f32|bf16.
void add_attention(Program& program, const View& q, const View& k_pool, const View& v_pool,
                   std::shared_ptr<AttentionPlan> plan, const View& out, float scale);

}  // namespace rs
