#include "attention_batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention_schedule.h"

namespace rs {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("attention plan: " + what);
}

void check_indptr(const std::vector<int32_t>& indptr, size_t num_reqs, const char* name) {
  if (indptr.size() != num_reqs + 1)
    refuse(std::string(name) + " has " + std::to_string(indptr.size()) + " entries for " +
           std::to_string(num_reqs) + " requests");
  if (indptr[0] != 0) refuse(std::string(name) + " does not begin with 0");
  if (!std::is_sorted(indptr.begin(), indptr.end())) refuse(std::string(name) + " descends");
}

}  // namespace

int32_t AttentionBatch::num_chunks(int32_t req) const {
  return (kv_lens[req] + kChunk - 1) / kChunk;
}

int32_t AttentionBatch::num_full_chunks(int32_t req) const {
  return (kv_lens[req] - qo_len(req) + 1) / kChunk;
}

int32_t AttentionBatch::max_block() const {
  int32_t largest = -1;
  for (int32_t req = 0; req < num_reqs(); ++req) {
    const auto first = kv_indices.begin() + kv_indptr[req];
    const int32_t count = (kv_lens[req] - 1) / block_size + 1;
    largest = std::max(largest, *std::max_element(first, first + count));
  }
  return largest;
}

void AttentionBatch::check() const {
  if (block_size < 1) refuse("block_size is " + std::to_string(block_size));
  if (num_kv_heads < 1 || num_qo_heads < 1 || num_qo_heads % num_kv_heads)
    refuse(std::to_string(num_qo_heads) + " query heads over " + std::to_string(num_kv_heads) +
           " KV heads");
  check_indptr(qo_indptr, kv_lens.size(), "qo_indptr");
  check_indptr(kv_indptr, kv_lens.size(), "kv_indptr");
  if (static_cast<size_t>(kv_indptr.back()) != kv_indices.size())
    refuse("kv_indptr ends at " + std::to_string(kv_indptr.back()) + ", kv_indices has " +
           std::to_string(kv_indices.size()));
  for (int32_t req = 0; req < num_reqs(); ++req) {
    const std::string name = "request " + std::to_string(req);
    if (qo_len(req) < 1) refuse(name + " has no query token");
    if (kv_lens[req] < qo_len(req))
      refuse(name + " has " + std::to_string(qo_len(req)) + " query tokens and only " +
             std::to_string(kv_lens[req]) + " tokens of KV");
    const int32_t needs = (kv_lens[req] - 1) / block_size + 1;
    const int32_t has = kv_indptr[req + 1] - kv_indptr[req];
    if (has < needs)
      refuse(name + " needs " + std::to_string(needs) + " blocks, it has " + std::to_string(has));
  }
  for (const int32_t block : kv_indices)
    if (block < 0) refuse("block id " + std::to_string(block));
}

}  // namespace rs
