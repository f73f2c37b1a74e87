// What a planned batch asks the attention kernels to do: plain arrays, as the compiled variants read
// them.
//
// KV is cut into chunks of kChunk tokens at absolute positions. What one query token's head sees of
// one chunk is a partial result (m, l, acc), computed in one order whoever computes it; the partial
// results of a head are merged in ascending order of chunks. A schedule only says who computes which
// partial result and when, and so cannot change a bit of the outcome:
//
//   chunk        0        1        2        3   (the last one is not full)
//   request A    [stored with B and C]     walk ->
//   request B    [stored with A and C]     walk ->
//   request C    [stored with A and B]     walk ->
//   request D    walk ------------------->
//
// First the stored items run, in any order, then the walks, in any order: a walk goes through the
// chunks of a request, merges what is stored and computes the rest.
#pragma once

#include <cstdint>

namespace rs {

// Tokens a chunk. A multiple of every variant's vector width.
constexpr int32_t kChunk = 128;

// Tokens that a load of K gives where its tokens lie innermost; a block is whole groups then, and so
// is a chunk.
constexpr int32_t kGroup = 16;

// A line is one query head of one token. Most lines of one KV head in one item, unless one token
// has more: enough that reshaping a chunk's K and V costs little beside the products.
constexpr int32_t kTileLines = 96;

// Partial results of some full chunks for all tokens of some requests that read the same blocks.
struct StoredItem {
  int32_t first_chunk, end_chunk;
  int32_t first_member, end_member;  // of `members`
  int32_t first_head, end_head;      // KV heads
};

// Some tokens of one request, over all their chunks.
struct WalkItem {
  int32_t req;
  int32_t first_token, end_token;  // of the request
  int32_t first_head, end_head;    // KV heads
};

struct Schedule {
  int32_t block_size, num_qo_heads, num_kv_heads;
  const int32_t* qo_indptr;   // [B + 1]
  const int32_t* kv_indptr;   // [B + 1], in blocks
  const int32_t* kv_indices;  // block ids
  const int32_t* kv_lens;     // [B], tokens
  // A request's chunk -> the first of its stored partial results, one a token and query head, in
  // this order; -1 where none is stored.
  const int32_t* chunk_indptr;  // [B + 1]
  const int32_t* slots;         // [chunk_indptr[B]]
  const int32_t* members;       // requests, as stored items name them
  const StoredItem* stored;
  const WalkItem* walks;
  int64_t num_stored, num_walks;
  int64_t num_partials;
  int32_t max_lines;      // most lines of one KV head in an item
  int32_t max_all_lines;  // most lines of all KV heads in an item

  int32_t group() const { return num_qo_heads / num_kv_heads; }
  int32_t qo_len(int32_t req) const { return qo_indptr[req + 1] - qo_indptr[req]; }
};

}  // namespace rs
