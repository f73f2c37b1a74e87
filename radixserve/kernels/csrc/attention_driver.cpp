#include <cmath>
#include <cstring>

#include "attention.h"
#include "bfloat16.h"
#include "driver.h"

namespace rs {
namespace {

// Requests of which some begin with the first one's blocks, over a pool that has no block to spare.
AttentionBatch draw_batch(Random& random) {
  AttentionBatch batch;
  batch.block_size = static_cast<int32_t>(random.number(1, 40));
  if (random.number(0, 1)) batch.block_size = (batch.block_size + kGroup - 1) / kGroup * kGroup;
  batch.num_kv_heads = static_cast<int32_t>(random.number(1, 3));
  batch.num_qo_heads = batch.num_kv_heads * static_cast<int32_t>(random.number(1, 5));
  batch.qo_indptr = batch.kv_indptr = {0};
  const auto start = static_cast<int32_t>(random.number(0, 300));
  int32_t used = 0;
  for (int64_t req = random.number(1, 4); req > 0; --req) {
    const bool is_decode = random.number(0, 1) == 1;
    const auto qo_len = static_cast<int32_t>(is_decode ? 1 : random.number(1, 50));
    const auto own_start = static_cast<int32_t>(random.number(0, 40));
    const int32_t num_shared = batch.kv_lens.empty() ? 0 : start / batch.block_size;
    const int32_t kv_len = start + own_start + qo_len;
    const int32_t num_blocks = (kv_len - 1) / batch.block_size + 1;
    for (int32_t i = 0; i < num_blocks; ++i)
      batch.kv_indices.push_back(i < num_shared ? batch.kv_indices[i] : used++);
    batch.qo_indptr.push_back(batch.qo_indptr.back() + qo_len);
    batch.kv_indptr.push_back(static_cast<int32_t>(batch.kv_indices.size()));
    batch.kv_lens.push_back(kv_len);
  }
  return batch;
}

int64_t place_of(const View& pool, int64_t block, int64_t token, int64_t head) {
  return block * pool.strides[0] + token * pool.strides[1] + head * pool.strides[2];
}

double element(const View& pool, const View& scale, int64_t block, int64_t token, int64_t head,
               int64_t d) {
  const int64_t at = place_of(pool, block, token, head) + d * pool.strides[3];
  if (pool.dtype == DType::float32) return pool.as<float>()[at];
  if (pool.dtype == DType::bfloat16) return widened(pool.as<uint16_t>()[at]);
  return double{scale.as<float>()[place_of(scale, block, token, head)]} * pool.as<int8_t>()[at];
}

// Dense [blocks, heads, size, D], or [blocks, heads, D, size], as [blocks, size, heads, D].
View by_token(const View& dense, bool has_token_columns) {
  View view = dense;
  const int token = has_token_columns ? 3 : 2, dim = has_token_columns ? 2 : 3;
  const int order[] = {0, token, 1, dim};
  for (int d = 0; d < 4; ++d) {
    view.shape[d] = dense.shape[order[d]];
    view.strides[d] = dense.strides[order[d]];
  }
  return view;
}

KVPool draw_pool(const AttentionBatch& batch, int64_t dim, Random& random) {
  const int64_t blocks = batch.max_block() + 1, size = batch.block_size;
  const int64_t heads = batch.num_kv_heads;
  constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::int8};
  const DType dtype = kDTypes[random.number(0, 2)];
  KVPool pool;
  if (random.number(0, 1)) {
    pool.k = random.array(dtype, {blocks, size, heads, dim});
    pool.v = random.array(dtype, {blocks, size, heads, dim});
  } else {
    const bool has_token_columns = size % kGroup == 0;
    pool.k = by_token(has_token_columns ? random.array(dtype, {blocks, heads, dim, size})
                                        : random.array(dtype, {blocks, heads, size, dim}),
                      has_token_columns);
    pool.v = by_token(random.array(dtype, {blocks, heads, size, dim}), false);
  }
  if (!pool.has_scales()) return pool;
  for (View* const scale : {&pool.k_scale, &pool.v_scale}) {
    *scale = by_token(random.array(DType::float32, {blocks, heads, size, 1}), false);
    for (int64_t i = 0; i < blocks * heads * size; ++i) scale->as<float>()[i] /= 127.0f;
  }
  return pool;
}

// One query head's attention over the request's first `seen` tokens, at one place of the result.
double truth(const AttentionBatch& batch, int32_t req, int64_t seen, const float* q,
             const KVPool& pools, int64_t head, int64_t place) {
  double sum = 0.0, weights = 0.0;
  for (int64_t i = 0; i < seen; ++i) {
    const int32_t block = batch.kv_indices[batch.kv_indptr[req] + i / batch.block_size];
    const int64_t token = i % batch.block_size;
    double score = 0.0;
    for (int64_t d = 0; d < pools.k.shape[3]; ++d)
      score += q[d] * element(pools.k, pools.k_scale, block, token, head, d);
    weights += std::exp(score);
    sum += std::exp(score) * element(pools.v, pools.v_scale, block, token, head, place);
  }
  return sum / weights;
}

void check(const AttentionBatch& batch, const View& q, const KVPool& pools, const View& out,
           Random& random) {
  for (int32_t req = 0; req < batch.num_reqs(); ++req) {
    const auto token = static_cast<int32_t>(random.number(0, batch.qo_len(req) - 1));
    const int64_t row = batch.qo_indptr[req] + token;
    const int64_t head = random.number(0, batch.num_qo_heads - 1);
    const int64_t place = random.number(0, q.shape[2] - 1);
    const int64_t seen = batch.kv_lens[req] - batch.qo_len(req) + token + 1;
    const double expected = truth(batch, req, seen, q.row<float>(row) + head * q.strides[1], pools,
                                  head / batch.group(), place);
    const double got = out.row<float>(row)[head * out.strides[1] + place];
    expect(std::fabs(got - expected) < 1e-4, "an attention is far from its truth");
  }
}

void attend(const AttentionBatch& batch, const View& q, const KVPool& pools, const View& out,
            bool share) {
  const auto plan = std::make_shared<AttentionPlan>(share);
  plan->set(batch);
  Program program;
  add_attention(program, q, pools, plan, out, 1.0f);
  program.run(batch.num_tokens());
}

}  // namespace

void drive_attention(Random& random) {
  const AttentionBatch batch = draw_batch(random);
  const int64_t rows = batch.num_tokens(), dim = 8 * random.number(1, 5);
  const KVPool pools = draw_pool(batch, dim, random);
  const View q = random.array(DType::float32, {rows, batch.num_qo_heads, dim});
  const View together = random.array(DType::float32, {rows, batch.num_qo_heads, dim});
  const View apart = random.array(DType::float32, {rows, batch.num_qo_heads, dim});
  attend(batch, q, pools, together, true);
  attend(batch, q, pools, apart, false);
  check(batch, q, pools, together, random);
  expect(std::memcmp(together.data, apart.data, rows * batch.num_qo_heads * dim * 4) == 0,
         "sharing changes a bit");
}

}  // namespace rs
