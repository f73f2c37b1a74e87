#include "attention.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "checks.h"
#include "threads.h"
#include "variants.h"

namespace rs {
namespace {

// A thread's scratch, kept from call to call.
class ThreadMemory {
 public:
  ThreadMemory() = default;
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;
  ~ThreadMemory() { std::free(data_); }

  void* at_least(int64_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = (size + 63) / 64 * 64;
      data_ = std::aligned_alloc(64, size_);
      if (data_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local ThreadMemory t_scratch;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("attention: " + what);
}

// A view's strides; those of a dimension with one index are never used.
PoolStrides strides_of(const View& pool) {
  if (pool.rank == 0) return {};
  return {pool.strides[0], pool.strides[1], pool.strides[2], pool.strides[3]};
}

// Whether a group of tokens of one d is one run of memory.
bool has_token_columns(const View& k) {
  return k.strides[1] == 1 && k.strides[3] >= kGroup && k.shape[1] % kGroup == 0;
}

bool is_laid_out(const KVPool& pool) {
  if (pool.v.strides[3] != 1) return false;
  return has_token_columns(pool.k) || pool.k.strides == pool.v.strides;
}

void check_shapes(const View& q, const KVPool& pool, const View& out) {
  if (q.rank != 3 || q.dtype != DType::float32)
    refuse("q must be float32 [rows, heads, head_dim], got " + q.describe());
  if (out.dtype != DType::float32 || out.rank != 3 || out.shape != q.shape)
    refuse("out must be like q " + q.describe() + ", got " + out.describe());
  pool.check(Checks("attention"), -1, q.shape[2]);
  if (q.shape[2] % 8)
    refuse("head_dim must be a multiple of 8, got q " + q.describe());
  if (pool.k.shape[2] < 1 || q.shape[1] % pool.k.shape[2])
    refuse("each KV head must serve equally many query heads, got q " + q.describe() +
           ", pools " + pool.k.describe());
  if (!is_laid_out(pool))
    refuse("pools must have head_dim innermost, or K its tokens, in blocks of whole groups of " +
           std::to_string(kGroup) + "; got other strides of " + pool.k.describe());
  if (pool.has_scales() && pool.k_scale.strides != pool.v_scale.strides)
    refuse("v_scale must lie as k_scale does");
}

class AttentionOp final : public Op {
 public:
  AttentionOp(const View& q, const KVPool& pool, std::shared_ptr<AttentionPlan> plan,
              const View& out, float scale)
      : q_(q), pool_(pool), out_(out), plan_(std::move(plan)), scale_(scale) {
    check_shapes(q, pool, out);
  }

  const char* name() const override { return "attention"; }
  void run(int64_t rows) override {
    if (rows == 0) return;
    const std::lock_guard lock(plan_->in_use());
    check_plan(rows);
    run_attention({.schedule = &plan_->schedule(),
                   .q = q_.as<float>(),
                   .q_token_stride = q_.strides[0],
                   .q_head_stride = q_.strides[1],
                   .out = out_.as<float>(),
                   .out_token_stride = out_.strides[0],
                   .out_head_stride = out_.strides[1],
                   .k = pool_.k.data,
                   .v = pool_.v.data,
                   .k_strides = strides_of(pool_.k),
                   .v_strides = strides_of(pool_.v),
                   .k_scale = pool_.k_scale.as<const float>(),
                   .v_scale = pool_.v_scale.as<const float>(),
                   .scale_strides = strides_of(pool_.k_scale),
                   .head_dim = static_cast<int32_t>(q_.shape[2]),
                   .scale = scale_,
                   .partials = nullptr},
                  *plan_, pool_.k.dtype);
  }

 private:
  void check_plan(int64_t rows) const {
    const AttentionBatch& batch = plan_->batch();
    if (batch.num_tokens() != rows)
      refuse("planned for " + std::to_string(batch.num_tokens()) + " rows, not " +
             std::to_string(rows));
    if (batch.num_qo_heads != q_.shape[1] || batch.num_kv_heads != pool_.k.shape[2] ||
        batch.block_size != pool_.k.shape[1])
      refuse("planned for " + std::to_string(batch.num_qo_heads) + " query heads, " +
             std::to_string(batch.num_kv_heads) + " KV heads and blocks of " +
             std::to_string(batch.block_size) + ", got q " + q_.describe() + ", pools " +
             pool_.k.describe());
    if (plan_->max_block() >= pool_.k.shape[0])
      throw std::out_of_range("attention: block " + std::to_string(plan_->max_block()) +
                              " is not in a pool of " + std::to_string(pool_.k.shape[0]));
  }

  View q_;
  KVPool pool_;
  View out_;
  std::shared_ptr<AttentionPlan> plan_;
  float scale_;
};

}  // namespace

void run_attention(AttentionCall call, AttentionPlan& plan, DType pool_dtype) {
  const Schedule& schedule = plan.schedule();
  const AttentionKernels& kernels = *variant().attention;
  const AttentionItems& items = pool_dtype == DType::bfloat16 ? kernels.bfloat16
                                : pool_dtype == DType::int8   ? kernels.int8
                                                              : kernels.float32;
  call.partials = plan.partials(schedule.num_partials * items.partial_floats(call.head_dim));
  const int64_t bytes = items.scratch_bytes(call);
  if (schedule.num_stored > 0)
    parallel_for(schedule.num_stored, [&](int64_t item) {
      items.store(call, item, t_scratch.at_least(bytes));
    });
  parallel_for(schedule.num_walks, [&](int64_t item) {
    items.walk(call, item, t_scratch.at_least(bytes));
  });
}

void add_attention(Program& program, const View& q, const KVPool& pool,
                   std::shared_ptr<AttentionPlan> plan, const View& out, float scale) {
  auto op = std::make_unique<AttentionOp>(q, pool, std::move(plan), out, scale);
  program.add(std::move(op), q.shape[0]);
}

}  // namespace rs
