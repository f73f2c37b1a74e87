// A batch of requests as attention sees it: FlashInfer's index arrays.
#pragma once

#include <cstdint>
#include <vector>

namespace rs {

struct AttentionBatch {
  std::vector<int32_t> qo_indptr;   // [B + 1]: query tokens of each request
  std::vector<int32_t> kv_indptr;   // [B + 1]: blocks of each request
  std::vector<int32_t> kv_indices;  // block ids
  std::vector<int32_t> kv_lens;     // [B]: tokens of KV, the query tokens' own included
  int32_t block_size = 1;
  int32_t num_qo_heads = 1;
  int32_t num_kv_heads = 1;

  int32_t num_reqs() const { return static_cast<int32_t>(kv_lens.size()); }
  int32_t num_tokens() const { return qo_indptr.empty() ? 0 : qo_indptr.back(); }
  int32_t group() const { return num_qo_heads / num_kv_heads; }
  int32_t qo_len(int32_t req) const { return qo_indptr[req + 1] - qo_indptr[req]; }
  int32_t num_chunks(int32_t req) const;
  // Leading chunks that are full and that all of the request's query tokens see.
  int32_t num_full_chunks(int32_t req) const;
  // The largest block id that is read, -1 if none is.
  int32_t max_block() const;

  // Throws std::invalid_argument saying which array is wrong, and how.
  void check() const;
};

}  // namespace rs
