// `AttentionPlan`: from a batch's block tables to a schedule of work items.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "attention_batch.h"
#include "attention_schedule.h"
#include "attention_sharing.h"

namespace rs {

// Partial results that are stored at most: 66 MB at a head_dim of 128. What would exceed it is not
// shared and not split.
constexpr int64_t kMaxPartials = 1 << 17;

// Requests with more lines of a KV head than this reshape their chunks for themselves: beside so
// many products it is not worth storing partial results.
constexpr int32_t kMaxSharedLines = 32;

class AttentionPlan {
 public:
  explicit AttentionPlan(bool share) : shares_(share) {}

  // Takes in a batch. Throws std::invalid_argument and keeps the former one if it is wrong.
  void set(AttentionBatch batch);

  const AttentionBatch& batch() const { return batch_; }
  const Schedule& schedule() const { return schedule_; }
  int32_t max_block() const { return max_block_; }

  int64_t num_rows() const { return batch_.num_tokens(); }
  int64_t num_shared_chunks() const { return num_shared_chunks_; }
  int64_t num_stored_items() const { return schedule_.num_stored; }
  int64_t num_walks() const { return schedule_.num_walks; }

  // One buffer of at least `size` floats for the stored partial results of whoever runs.
  float* partials(int64_t size);
  // Held by whoever sets or runs the plan.
  std::mutex& in_use() { return in_use_; }

 private:
  void store_shared();
  void split_long();
  void divide_stored();
  void plan_walks();
  void update_schedule();

  bool is_one_tile(int32_t req) const;
  bool is_stored(int32_t req, int32_t chunk) const {
    return slots_[chunk_indptr_[req] + chunk] >= 0;
  }
  // Lines times chunks that a request computes by itself.
  int64_t walk_cost(int32_t req) const;
  void store_tiles(const SharedChunk& shared);
  void store_alone(int32_t req);
  void store(int32_t first_chunk, int32_t end_chunk, int32_t first_member, int32_t end_member);
  // False if there is no room for the request's partial results of `num_chunks` chunks.
  bool has_room(int64_t num_tokens, int64_t num_chunks) const;
  void assign_slot(int32_t req, int32_t chunk);
  void add_walks(int32_t req);

  bool shares_;
  AttentionBatch batch_;
  int32_t max_block_ = -1;
  int64_t num_shared_chunks_ = 0;
  int64_t num_partials_ = 0;
  std::vector<int32_t> chunk_indptr_, slots_, members_;
  std::vector<bool> is_split_;
  std::vector<StoredItem> stored_;
  std::vector<WalkItem> walks_;
  Schedule schedule_{};
  std::vector<float> partials_;
  std::mutex in_use_;
};

}  // namespace rs
