// Paged attention, compiled once per variant: how a stored item and a walk are done.
#include "attention.h"
#include "attention_chunk.h"
#include "attention_merge.h"
#include "attention_pairs.h"
#include "attention_schedule.h"
#include "attention_scratch.h"
#include "simd.h"

namespace rs::RS_VARIANT {
namespace {

template <class T>
class Item {
 public:
  Item(const AttentionCall& call, void* memory)
      : call_(call), schedule_(*call.schedule), width_(acc_width<T>(call.head_dim)) {
    lay_out<T>(call, memory, scratch_);
  }

  void store_partials(const StoredItem& item);
  void walk(const WalkItem& item);

 private:
  // Where each token of a chunk lies in the pools. Returns how many tokens the request has there;
  // for those that it has not, the last one's place, so that nobody else's is ever touched.
  int find_tokens(int32_t req, int32_t chunk, Places& places) const;
  ChunkKV<T> head_of(const Places* places, int count, int32_t head) const {
    const int64_t scales = head * call_.scale_strides.head;
    return {.k = static_cast<const T*>(call_.k) + head * call_.k_strides.head,
            .v = static_cast<const T*>(call_.v) + head * call_.v_strides.head,
            .places = places,
            .count = count,
            .k_step = call_.k_strides.dim,
            .k_scale = call_.k_scale + scales,
            .v_scale = call_.v_scale + scales,
            .scale_run = has_scale_groups() ? kGroup : 1};
  }
  // So many lines a head of an item, of so many KV heads, go through a chunk pair by pair. Those of
  // int8 do not: half as many bytes keep them waiting less than the sums' way to memory and back.
  bool goes_by_pairs(int32_t lines, int32_t num_heads) const {
    return sizeof(T) > 1 && num_heads > 1 && lines <= kMaxRows && call_.has_token_columns() &&
           call_.head_dim == width_ && call_.v_strides.token == call_.head_dim;
  }
  // All lines see something of the chunk. Without a next chunk `next` is this one again.
  void attend_pairs(int32_t first_head, int32_t end_head, int count, bool has_next, int32_t lines) {
    const ChunkHeads<T> heads{head_of(scratch_.places[0], count, first_head),
                              end_head - first_head, call_.k_strides.head, call_.v_strides.head,
                              call_.scale_strides.head};
    attend_heads<T>(heads, *scratch_.places[has_next ? 1 : 0],
                    {scratch_.q, scratch_.visible, lines}, call_.head_dim, scratch_, partials());
  }
  bool has_scale_groups() const {
    return call_.scale_strides.token == 1 && schedule_.block_size % kGroup == 0;
  }
  // Copies the query heads of one KV head and token, scaled, to scratch.
  void load_q(int64_t token, int32_t head, float* lines) const;
  Partials partials() const { return {scratch_.acc, scratch_.m, scratch_.l}; }
  Partials state() const { return {scratch_.state_acc, scratch_.state_m, scratch_.state_l}; }
  // The stored partial result at a slot.
  float* stored_acc(int64_t slot) const { return call_.partials + slot * (width_ + 2); }

  void swap_places() {
    Places* const places = scratch_.places[0];
    scratch_.places[0] = scratch_.places[1];
    scratch_.places[1] = places;
  }

  int32_t begin_store(const StoredItem& item) const;
  void store_chunk(const StoredItem& item, int32_t chunk, int32_t num_lines, bool goes_on);
  void keep_partials(const StoredItem& item, int32_t chunk, int32_t head,
                     const Partials& from) const;

  void begin_walk(const WalkItem& item);
  int count_visible(const WalkItem& item, int32_t chunk) const;
  void compute_chunk(const WalkItem& item, int32_t chunk, int count, int next_count);
  void merge_stored(const WalkItem& item, int32_t slot);
  void finish_walk(const WalkItem& item);

  int32_t slot_of(int32_t req, int32_t chunk) const {
    return schedule_.slots[schedule_.chunk_indptr[req] + chunk];
  }
  int32_t lines_a_head(const WalkItem& item) const {
    return (item.end_token - item.first_token) * schedule_.group();
  }

  const AttentionCall& call_;
  const Schedule& schedule_;
  const int64_t width_;
  Scratch scratch_{};
};

template <class T>
int Item<T>::find_tokens(int32_t req, int32_t chunk, Places& places) const {
  const int64_t first = static_cast<int64_t>(chunk) * kChunk, size = schedule_.block_size;
  const int64_t left = schedule_.kv_lens[req] - first;
  const int count = left < kChunk ? static_cast<int>(left) : kChunk;
  const int32_t* block = schedule_.kv_indices + schedule_.kv_indptr[req] + first / size;
  const PoolStrides &v = call_.v_strides, &k = call_.k_strides, &scale = call_.scale_strides;
  int64_t in_block = first % size;
  for (int i = 0; i < count; ++block, in_block = 0) {
    const int begin = i, end = size - in_block < count - i ? i + (size - in_block) : count;
    const int64_t start = *block * v.block + in_block * v.token;
    for (; i < end; ++i) places.tokens[i] = start + (i - begin) * v.token;
    if constexpr (sizeof(T) == 1)
      for (int t = begin; t < end; ++t)
        places.scales[t] = *block * scale.block + (in_block + t - begin) * scale.token;
    if (call_.has_token_columns())
      for (int t = begin; t < end; t += kGroup)
        places.groups[t / kGroup] = *block * k.block + in_block + t - begin;
  }
  for (int i = count; i < kChunk; ++i) places.tokens[i] = places.tokens[count - 1];
  const int last_group = (count - 1) / kGroup;
  for (int i = last_group + 1; i < kChunk / kGroup; ++i)
    places.groups[i] = places.groups[last_group];
  return count;
}

template <class T>
void Item<T>::load_q(int64_t token, int32_t head, float* lines) const {
  const int32_t group = schedule_.group();
  const float* row = call_.q + token * call_.q_token_stride + head * group * call_.q_head_stride;
  for (int32_t i = 0; i < group; ++i, row += call_.q_head_stride, lines += call_.head_dim)
    for (int32_t d = 0; d < call_.head_dim; ++d) lines[d] = row[d] * call_.scale;
}

template <class T>
void Item<T>::store_partials(const StoredItem& item) {
  const int32_t num_lines = begin_store(item), req = schedule_.members[item.first_member];
  find_tokens(req, item.first_chunk, *scratch_.places[0]);
  for (int32_t chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
    const bool goes_on = chunk + 1 < item.end_chunk;
    if (goes_on) find_tokens(req, chunk + 1, *scratch_.places[1]);
    store_chunk(item, chunk, num_lines, goes_on);
    swap_places();
  }
}

template <class T>
void Item<T>::store_chunk(const StoredItem& item, int32_t chunk, int32_t num_lines, bool goes_on) {
  const int32_t first = item.first_head, end = item.end_head;
  if (goes_by_pairs(num_lines, end - first)) {
    attend_pairs(first, end, kChunk, goes_on, num_lines);
    for (int32_t head = first; head < end; ++head)
      keep_partials(item, chunk, head, partials_of(partials(), head - first, num_lines, width_));
    return;
  }
  for (int32_t head = first; head < end; ++head) {
    const int64_t line = static_cast<int64_t>(head - first) * num_lines;
    const ChunkKV<T> kv = head_of(scratch_.places[0], kChunk, head);
    const ChunkKV<T> next = head + 1 < end ? head_of(kv.places, kChunk, head + 1)
                            : goes_on      ? head_of(scratch_.places[1], kChunk, first)
                                           : kv;
    attend_chunk<T>(kv, next, {scratch_.q + line * call_.head_dim, scratch_.visible, num_lines},
                    call_.head_dim, scratch_, partials());
    keep_partials(item, chunk, head, partials());
  }
}

// Loads the queries of all members. Returns the lines of each KV head.
template <class T>
int32_t Item<T>::begin_store(const StoredItem& item) const {
  const int32_t group = schedule_.group();
  int32_t lines = 0;
  for (int32_t head = item.first_head; head < item.end_head; ++head)
    for (int32_t m = item.first_member; m < item.end_member; ++m) {
      const int32_t req = schedule_.members[m];
      for (int64_t token = schedule_.qo_indptr[req]; token < schedule_.qo_indptr[req + 1]; ++token) {
        load_q(token, head, scratch_.q + static_cast<int64_t>(lines) * call_.head_dim);
        lines += group;
      }
    }
  lines /= item.end_head - item.first_head;
  for (int32_t line = 0; line < lines; ++line) scratch_.visible[line] = kChunk;
  return lines;
}

template <class T>
void Item<T>::keep_partials(const StoredItem& item, int32_t chunk, int32_t head,
                            const Partials& from) const {
  const int32_t group = schedule_.group();
  int64_t line = 0;
  for (int32_t m = item.first_member; m < item.end_member; ++m) {
    const int32_t req = schedule_.members[m];
    const int64_t slot = slot_of(req, chunk) + head * group;
    for (int32_t i = 0; i < schedule_.qo_len(req) * group; ++i, ++line) {
      float* const acc = stored_acc(slot + i / group * schedule_.num_qo_heads + i % group);
      for (int64_t d = 0; d < width_; d += W) store(acc + d, load(from.acc + line * width_ + d));
      acc[width_] = from.m[line];
      acc[width_ + 1] = from.l[line];
    }
  }
}

template <class T>
void Item<T>::walk(const WalkItem& item) {
  begin_walk(item);
  const int32_t req = item.req;
  const int64_t seen = schedule_.kv_lens[req] - schedule_.qo_len(req) + item.end_token;
  const auto num_chunks = static_cast<int32_t>((seen + kChunk - 1) / kChunk);
  int count = 0;  // tokens of the chunk whose places are known already
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    if (const int32_t slot = slot_of(req, chunk); slot >= 0) {
      merge_stored(item, slot);
      continue;
    }
    if (count == 0) count = find_tokens(req, chunk, *scratch_.places[0]);
    const bool goes_on = chunk + 1 < num_chunks && slot_of(req, chunk + 1) < 0;
    const int next_count = goes_on ? find_tokens(req, chunk + 1, *scratch_.places[1]) : 0;
    compute_chunk(item, chunk, count, next_count);
    swap_places();
    count = next_count;
  }
  finish_walk(item);
}

template <class T>
void Item<T>::begin_walk(const WalkItem& item) {
  const int64_t first = schedule_.qo_indptr[item.req] + item.first_token;
  const int32_t group = schedule_.group();
  int64_t line = 0;
  for (int32_t head = item.first_head; head < item.end_head; ++head)
    for (int32_t i = 0; i < item.end_token - item.first_token; ++i, line += group)
      load_q(first + i, head, scratch_.q + line * call_.head_dim);
  for (int64_t i = 0; i < line; ++i) clear_line(state(), i, width_);
}

// Fills in what each line of a head sees of the chunk. Returns the first line that sees anything.
template <class T>
int Item<T>::count_visible(const WalkItem& item, int32_t chunk) const {
  const int32_t before = schedule_.kv_lens[item.req] - schedule_.qo_len(item.req);
  const int32_t group = schedule_.group();
  int first = 0;
  for (int32_t line = 0; line < lines_a_head(item); ++line) {
    const int32_t seen = before + item.first_token + line / group + 1 - chunk * kChunk;
    scratch_.visible[line] = seen < kChunk ? seen : kChunk;
    if (seen < 1) first = line + 1;
  }
  return first;
}

template <class T>
void Item<T>::compute_chunk(const WalkItem& item, int32_t chunk, int count, int next_count) {
  const int32_t lines = lines_a_head(item), first = count_visible(item, chunk);
  // A later tile's tokens are written, but none of this tile's lines sees them.
  const int32_t most = scratch_.visible[lines - 1];
  const int32_t num_heads = item.end_head - item.first_head;
  if (first == 0 && goes_by_pairs(lines, num_heads)) {
    attend_pairs(item.first_head, item.end_head, smaller(count, most), next_count > 0, lines);
    for (int64_t i = 0; i < static_cast<int64_t>(lines) * num_heads; ++i)
      merge_line(state(), i, width_, scratch_.m[i], scratch_.l[i], scratch_.acc + i * width_);
    return;
  }
  for (int32_t head = item.first_head; head < item.end_head; ++head) {
    const bool is_last = head + 1 == item.end_head;
    const ChunkKV<T> kv = head_of(scratch_.places[0], count < most ? count : most, head);
    const ChunkKV<T> next = !is_last         ? head_of(scratch_.places[0], kv.count, head + 1)
                            : next_count > 0 ? head_of(scratch_.places[1], next_count, item.first_head)
                                             : kv;
    const int64_t line = static_cast<int64_t>(head - item.first_head) * lines + first;
    attend_chunk<T>(kv, next,
                    {scratch_.q + line * call_.head_dim, scratch_.visible + first, lines - first},
                    call_.head_dim, scratch_, partials());
    for (int32_t i = 0; i < lines - first; ++i)
      merge_line(state(), line + i, width_, scratch_.m[i], scratch_.l[i],
                 scratch_.acc + i * width_);
  }
}

template <class T>
void Item<T>::merge_stored(const WalkItem& item, int32_t slot) {
  const int32_t group = schedule_.group();
  int64_t line = 0;
  for (int32_t head = item.first_head; head < item.end_head; ++head)
    for (int32_t token = item.first_token; token < item.end_token; ++token)
      for (int32_t i = 0; i < group; ++i, ++line) {
        const float* const acc = stored_acc(
            slot + static_cast<int64_t>(token) * schedule_.num_qo_heads + head * group + i);
        merge_line(state(), line, width_, acc[width_], acc[width_ + 1], acc);
      }
}

template <class T>
void Item<T>::finish_walk(const WalkItem& item) {
  const int64_t first = schedule_.qo_indptr[item.req];
  const int32_t group = schedule_.group();
  int64_t line = 0;
  for (int32_t head = item.first_head; head < item.end_head; ++head)
    for (int32_t token = item.first_token; token < item.end_token; ++token)
      for (int32_t i = 0; i < group; ++i, ++line) {
        float* const row = call_.out + (first + token) * call_.out_token_stride +
                           (head * group + i) * call_.out_head_stride;
        finish_line<T>(state(), line, width_, call_.head_dim, row);
      }
}

template <class T>
void store_item(const AttentionCall& call, int64_t item, void* scratch) {
  Item<T>(call, scratch).store_partials(call.schedule->stored[item]);
}

template <class T>
void walk_item(const AttentionCall& call, int64_t item, void* scratch) {
  Item<T>(call, scratch).walk(call.schedule->walks[item]);
}

template <class T>
int64_t scratch_bytes(const AttentionCall& call) {
  Scratch scratch{};
  return lay_out<T>(call, nullptr, scratch);
}

template <class T>
int64_t partial_floats(int32_t head_dim) {
  return acc_width<T>(head_dim) + 2;
}

template <class T>
constexpr AttentionItems kItems = {
    .scratch_bytes = scratch_bytes<T>,
    .partial_floats = partial_floats<T>,
    .store = store_item<T>,
    .walk = walk_item<T>,
};

}  // namespace

extern const AttentionKernels attention_kernels = {
    .float32 = kItems<float>,
    .bfloat16 = kItems<uint16_t>,
    .int8 = kItems<int8_t>,
};

}  // namespace rs::RS_VARIANT
