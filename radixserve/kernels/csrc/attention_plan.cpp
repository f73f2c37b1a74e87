#include "attention_plan.h"

#include <algorithm>
#include <utility>

#include "threads.h"

namespace rs {
namespace {

// A request of more than this part of a thread's fair share of the work is split, into items of about
// this part: dynamic scheduling then leaves no thread idle for longer.
constexpr int32_t kItemsAThread = 4;

// A request of no more chunks of one KV head, some 20 us of work for one thread, is not split.
// It is done before the others have been woken, twice, and their results merged.
constexpr int64_t kMinSplitChunks = 12;

// Most lines of a walk that goes through all KV heads of a chunk before the next chunk, so that
// memory is read in the order in which it lies. Beyond, a walk of its own for each head.
constexpr int32_t kMaxWalkLines = 128;

}  // namespace

void AttentionPlan::set(AttentionBatch batch) {
  batch.check();
  const std::lock_guard lock(in_use_);
  batch_ = std::move(batch);
  max_block_ = batch_.max_block();
  num_partials_ = num_shared_chunks_ = 0;
  members_.clear();
  stored_.clear();
  walks_.clear();
  chunk_indptr_.assign(1, 0);
  for (int32_t req = 0; req < batch_.num_reqs(); ++req)
    chunk_indptr_.push_back(chunk_indptr_.back() + batch_.num_chunks(req));
  slots_.assign(chunk_indptr_.back(), -1);
  is_split_.assign(batch_.num_reqs(), false);
  if (shares_) store_shared();
  split_long();
  divide_stored();
  plan_walks();
  update_schedule();
}

float* AttentionPlan::partials(int64_t size) {
  if (static_cast<int64_t>(partials_.size()) < size) {
    partials_.clear();
    partials_.resize(size);
  }
  return partials_.data();
}

bool AttentionPlan::is_one_tile(int32_t req) const {
  return batch_.qo_len(req) == 1 || batch_.qo_len(req) * batch_.group() <= kTileLines;
}

int64_t AttentionPlan::walk_cost(int32_t req) const {
  const auto first = slots_.begin() + chunk_indptr_[req];
  const auto last = slots_.begin() + chunk_indptr_[req + 1];
  return batch_.qo_len(req) * std::count(first, last, -1);
}

bool AttentionPlan::has_room(int64_t num_tokens, int64_t num_chunks) const {
  return num_partials_ + num_tokens * num_chunks * batch_.num_qo_heads <= kMaxPartials;
}

void AttentionPlan::assign_slot(int32_t req, int32_t chunk) {
  slots_[chunk_indptr_[req] + chunk] = static_cast<int32_t>(num_partials_);
  num_partials_ += static_cast<int64_t>(batch_.qo_len(req)) * batch_.num_qo_heads;
}

void AttentionPlan::store_shared() {
  std::vector<int32_t> candidates;
  for (int32_t req = 0; req < batch_.num_reqs(); ++req)
    if (batch_.qo_len(req) == 1 || batch_.qo_len(req) * batch_.group() <= kMaxSharedLines)
      candidates.push_back(req);
  if (candidates.size() < 2) return;
  for (const SharedChunk& shared : find_shared_chunks(batch_, candidates)) {
    int64_t num_tokens = 0;
    for (const int32_t req : shared.reqs) num_tokens += batch_.qo_len(req);
    if (has_room(num_tokens, 1)) store_tiles(shared);
  }
}

void AttentionPlan::store_tiles(const SharedChunk& shared) {
  ++num_shared_chunks_;
  int64_t num_tokens = 0;
  for (const int32_t req : shared.reqs) num_tokens += batch_.qo_len(req);
  const int64_t lines = num_tokens * batch_.group();
  const int64_t num_tiles = (lines + kTileLines - 1) / kTileLines;
  const int64_t lines_a_tile = (lines + num_tiles - 1) / num_tiles;
  for (size_t next = 0; next < shared.reqs.size();) {
    const auto first_member = static_cast<int32_t>(members_.size());
    int64_t filled = 0;
    do {
      const int32_t req = shared.reqs[next++];
      members_.push_back(req);
      assign_slot(req, shared.chunk);
      filled += static_cast<int64_t>(batch_.qo_len(req)) * batch_.group();
    } while (next < shared.reqs.size() && filled < lines_a_tile &&
             filled + batch_.qo_len(shared.reqs[next]) * batch_.group() <= kTileLines);
    const int32_t end_member = static_cast<int32_t>(members_.size());
    store(shared.chunk, shared.chunk + 1, first_member, end_member);
  }
}

void AttentionPlan::store(int32_t first_chunk, int32_t end_chunk, int32_t first_member,
                          int32_t end_member) {
  stored_.push_back({first_chunk, end_chunk, first_member, end_member, 0, batch_.num_kv_heads});
}

void AttentionPlan::split_long() {
  int64_t total = 0;
  for (int32_t req = 0; req < batch_.num_reqs(); ++req) total += walk_cost(req);
  const int64_t most = total / (static_cast<int64_t>(num_threads()) * kItemsAThread);
  const int64_t least = kMinSplitChunks / batch_.num_kv_heads;
  for (int32_t req = 0; num_threads() > 1 && req < batch_.num_reqs(); ++req)
    if (is_one_tile(req) && walk_cost(req) > std::max(most, least)) store_alone(req);
}

void AttentionPlan::store_alone(int32_t req) {
  is_split_[req] = true;
  const int32_t num_full = batch_.num_full_chunks(req);
  if (!has_room(batch_.qo_len(req), num_full)) return;
  const auto member = static_cast<int32_t>(members_.size());
  members_.push_back(req);
  const int32_t most = std::max(1, num_full / (num_threads() * kItemsAThread));
  for (int32_t first = 0, end; first < num_full; first = end) {
    for (end = first; end < num_full && end - first < most && !is_stored(req, end); ++end)
      assign_slot(req, end);
    if (end > first) store(first, end, member, member + 1);
    if (end < num_full && is_stored(req, end)) ++end;
  }
}

// Items go through all KV heads of a chunk, so that memory is read in the order in which it lies and
// each head's is on its way while another is computed. Where that leaves threads without work, an
// item for each head.
void AttentionPlan::divide_stored() {
  if (stored_.size() >= static_cast<size_t>(num_threads()) * kItemsAThread) return;
  std::vector<StoredItem> items;
  for (const StoredItem& item : stored_)
    for (int32_t head = 0; head < batch_.num_kv_heads; ++head) {
      items.push_back(item);
      items.back().first_head = head;
      items.back().end_head = head + 1;
    }
  stored_ = std::move(items);
}

void AttentionPlan::plan_walks() {
  for (int32_t req = 0; req < batch_.num_reqs(); ++req) add_walks(req);
  // The longest first, so that the last ones to end are short.
  const auto cost = [this](const WalkItem& walk) {
    const int64_t seen = batch_.kv_lens[walk.req] - batch_.qo_len(walk.req) + walk.end_token;
    return seen * (walk.end_token - walk.first_token) * (walk.end_head - walk.first_head);
  };
  std::stable_sort(walks_.begin(), walks_.end(), [&cost](const WalkItem& a, const WalkItem& b) {
    return cost(a) > cost(b);
  });
}

void AttentionPlan::add_walks(int32_t req) {
  const int32_t num_tokens = batch_.qo_len(req), num_heads = batch_.num_kv_heads;
  const bool by_head = is_split_[req] || num_tokens * batch_.num_qo_heads > kMaxWalkLines;
  const int32_t heads_a_walk = by_head ? 1 : num_heads;
  const int32_t most_tokens = std::max(1, kTileLines / batch_.group());
  const int32_t num_tiles = (num_tokens + most_tokens - 1) / most_tokens;
  for (int32_t tile = 0; tile < num_tiles; ++tile) {
    const auto first = static_cast<int32_t>(int64_t{num_tokens} * tile / num_tiles);
    const auto end = static_cast<int32_t>(int64_t{num_tokens} * (tile + 1) / num_tiles);
    for (int32_t head = 0; head < num_heads; head += heads_a_walk)
      walks_.push_back({req, first, end, head, head + heads_a_walk});
  }
}

void AttentionPlan::update_schedule() {
  int32_t max_lines = 0, max_all_lines = 0;
  for (const WalkItem& walk : walks_) {
    const int32_t lines = (walk.end_token - walk.first_token) * batch_.group();
    max_lines = std::max(max_lines, lines);
    max_all_lines = std::max(max_all_lines, lines * (walk.end_head - walk.first_head));
  }
  for (const StoredItem& item : stored_) {
    int32_t lines = 0;
    for (int32_t m = item.first_member; m < item.end_member; ++m)
      lines += batch_.qo_len(members_[m]) * batch_.group();
    max_lines = std::max(max_lines, lines);
    max_all_lines = std::max(max_all_lines, lines * (item.end_head - item.first_head));
  }
  schedule_ = {.block_size = batch_.block_size,
               .num_qo_heads = batch_.num_qo_heads,
               .num_kv_heads = batch_.num_kv_heads,
               .qo_indptr = batch_.qo_indptr.data(),
               .kv_indptr = batch_.kv_indptr.data(),
               .kv_indices = batch_.kv_indices.data(),
               .kv_lens = batch_.kv_lens.data(),
               .chunk_indptr = chunk_indptr_.data(),
               .slots = slots_.data(),
               .members = members_.data(),
               .stored = stored_.data(),
               .walks = walks_.data(),
               .num_stored = static_cast<int64_t>(stored_.size()),
               .num_walks = static_cast<int64_t>(walks_.size()),
               .num_partials = num_partials_,
               .max_lines = max_lines,
               .max_all_lines = max_all_lines};
}

}  // namespace rs
