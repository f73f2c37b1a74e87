#include "attention.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

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

void check_shapes(const View& q, const View& k, const View& v, const View& out) {
  if (q.rank != 3 || q.dtype != DType::float32)
    refuse("q must be float32 [rows, heads, head_dim], got " + q.describe());
  if (out.dtype != DType::float32 || out.rank != 3 || out.shape != q.shape)
    refuse("out must be like q " + q.describe() + ", got " + out.describe());
  if (k.rank != 4 || (k.dtype != DType::float32 && k.dtype != DType::bfloat16))
    refuse("k_pool must be float32 or bfloat16 [blocks, size, heads, head_dim], got " +
           k.describe());
  if (v.rank != 4 || v.dtype != k.dtype || v.shape != k.shape || v.strides != k.strides)
    refuse("v_pool must lie as k_pool " + k.describe() + " does, got " + v.describe());
  if (k.shape[3] != q.shape[2] || q.shape[2] % 8)
    refuse("head_dim must be one multiple of 8, got q " + q.describe() + ", pools " +
           k.describe());
  if (k.shape[2] < 1 || q.shape[1] % k.shape[2])
    refuse("each KV head must serve equally many query heads, got q " + q.describe() +
           ", pools " + k.describe());
}

class AttentionOp final : public Op {
 public:
  AttentionOp(const View& q, const View& k, const View& v, std::shared_ptr<AttentionPlan> plan,
              const View& out, float scale)
      : q_(q), k_(k), v_(v), out_(out), plan_(std::move(plan)), scale_(scale) {
    check_shapes(q, k, v, out);
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
                   .k = k_.data,
                   .v = v_.data,
                   .block_stride = k_.strides[0],
                   .token_stride = k_.strides[1],
                   .head_stride = k_.strides[2],
                   .head_dim = static_cast<int32_t>(q_.shape[2]),
                   .scale = scale_,
                   .partials = nullptr},
                  *plan_, k_.dtype);
  }

 private:
  void check_plan(int64_t rows) const {
    const AttentionBatch& batch = plan_->batch();
    if (batch.num_tokens() != rows)
      refuse("planned for " + std::to_string(batch.num_tokens()) + " rows, not " +
             std::to_string(rows));
    if (batch.num_qo_heads != q_.shape[1] || batch.num_kv_heads != k_.shape[2] ||
        batch.block_size != k_.shape[1])
      refuse("planned for " + std::to_string(batch.num_qo_heads) + " query heads, " +
             std::to_string(batch.num_kv_heads) + " KV heads and blocks of " +
             std::to_string(batch.block_size) + ", got q " + q_.describe() + ", pools " +
             k_.describe());
    if (plan_->max_block() >= k_.shape[0])
      throw std::out_of_range("attention: block " + std::to_string(plan_->max_block()) +
                              " is not in a pool of " + std::to_string(k_.shape[0]));
  }

  View q_, k_, v_, out_;
  std::shared_ptr<AttentionPlan> plan_;
  float scale_;
};

}  // namespace

void run_attention(AttentionCall call, AttentionPlan& plan, DType pool_dtype) {
  const Schedule& schedule = plan.schedule();
  const AttentionKernels& kernels = *variant().attention;
  const AttentionItems& items = pool_dtype == DType::bfloat16 ? kernels.bfloat16 : kernels.float32;
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

void add_attention(Program& program, const View& q, const View& k_pool, const View& v_pool,
                   std::shared_ptr<AttentionPlan> plan, const View& out, float scale) {
  auto op = std::make_unique<AttentionOp>(q, k_pool, v_pool, std::move(plan), out, scale);
  program.add(std::move(op), q.shape[0]);
}

}  // namespace rs
