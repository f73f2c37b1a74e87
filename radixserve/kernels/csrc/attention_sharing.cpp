#include "attention_sharing.h"

#include <cstring>
#include <utility>

#include "attention_schedule.h"

namespace rs {
namespace {

using Reqs = std::vector<int32_t>;

bool same_blocks(const AttentionBatch& batch, int32_t a, int32_t b, int32_t chunk) {
  const int64_t first_token = static_cast<int64_t>(chunk) * kChunk;
  const int64_t first = first_token / batch.block_size;
  const int64_t last = (first_token + kChunk - 1) / batch.block_size;
  const int32_t* const blocks = batch.kv_indices.data() + first;
  return std::memcmp(blocks + batch.kv_indptr[a], blocks + batch.kv_indptr[b],
                     (last - first + 1) * sizeof(int32_t)) == 0;
}

// Parts of `reqs` that agree on a chunk, as far as they have it in full; those of one are left out.
std::vector<Reqs> split(const AttentionBatch& batch, const Reqs& reqs, int32_t chunk) {
  std::vector<Reqs> parts;
  for (const int32_t req : reqs) {
    if (batch.num_full_chunks(req) <= chunk) continue;
    bool is_placed = false;
    for (Reqs& part : parts) {
      if (!same_blocks(batch, part[0], req, chunk)) continue;
      part.push_back(req);
      is_placed = true;
      break;
    }
    if (!is_placed) parts.push_back({req});
  }
  std::erase_if(parts, [](const Reqs& part) { return part.size() < 2; });
  return parts;
}

}  // namespace

std::vector<SharedChunk> find_shared_chunks(const AttentionBatch& batch,
                                            const std::vector<int32_t>& candidates) {
  std::vector<SharedChunk> found;
  std::vector<Reqs> groups{candidates};
  for (int32_t chunk = 0; !groups.empty(); ++chunk) {
    std::vector<Reqs> next;
    for (const Reqs& group : groups)
      for (Reqs& part : split(batch, group, chunk)) {
        found.push_back({chunk, part});
        next.push_back(std::move(part));
      }
    groups = std::move(next);
  }
  return found;
}

}  // namespace rs
