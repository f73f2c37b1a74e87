// What some lines see of one chunk: the partial results (m, l, acc).
//
//   score = q . k        over d in ascending order; q has been scaled
//   m     = max score,   l = sum of p = e^(score - m), W sums side by side and then their tree
//   acc   = sum of p v   over tokens in ascending order
#pragma once

#include "attention_columns.h"
#include "attention_product.h"
#include "attention_schedule.h"
#include "attention_scratch.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// One KV head of the tokens of one chunk. Only `count` of them have been written.
template <class T>
struct ChunkKV {
  const T* k;
  const T* v;
  const int64_t* offsets;  // of each token's row
  int count;
};

// Query heads of some tokens that read one chunk: rows of head_dim floats, and how many of the
// chunk's tokens each sees: at least 1, and never fewer than the line before.
struct Lines {
  const float* q;
  const int32_t* visible;
  int count;
};

// Partial results, a line each.
struct Partials {
  float* acc;  // of acc_width floats
  float* m;
  float* l;
};

RS_INLINE int num_vectors(int count) { return (count + W - 1) / W; }

// Asks for the rows of a chunk that is needed next, tokens [begin, end).
template <class T>
RS_INLINE void prefetch(const ChunkKV<T>* next, const T* base, int begin, int end, int head_dim) {
  constexpr int line = 64 / sizeof(T);
  for (int i = begin; i < end && i < next->count; ++i)
    for (int d = 0; d < head_dim; d += line)
      __builtin_prefetch(base + next->offsets[i] + d, 0, 2);
}

// Tokens beyond `count` become zero rows: what lies there may be another request's, or NaN.
template <class T>
void pack_keys(const ChunkKV<T>& kv, const ChunkKV<T>* next, int head_dim, Scratch& scratch) {
  const T* rows[W];
  for (int first = 0; first < kv.count; first += W) {
    for (int i = 0; i < W; ++i)
      rows[i] = first + i < kv.count ? kv.k + kv.offsets[first + i]
                                     : reinterpret_cast<const T*>(scratch.zeros);
    if (next != nullptr) {
      prefetch(next, next->k, first, first + W, head_dim);
      prefetch(next, next->v, first, first + W, head_dim);
    }
    transpose(rows, head_dim, scratch.keys + static_cast<int64_t>(first) * head_dim);
  }
}

template <class T>
void pack_values(const ChunkKV<T>& kv, int head_dim, Scratch& scratch) {
  for (int column = 0; column < num_vectors(head_dim); ++column) {
    float* const packed = scratch.values + static_cast<int64_t>(column) * kChunk * W;
    const int64_t d = static_cast<int64_t>(column) * W;
    const int64_t n = head_dim - d < W ? head_dim - d : W;
    for (int i = 0; i < kv.count; ++i)
      store(packed + i * W, load_n_element(kv.v + kv.offsets[i] + d, n));
  }
}

RS_INLINE int rows_at(const Lines& lines, int first) {
  const int left = lines.count - first;
  return left < kMaxRows ? left : kMaxRows;
}

// Column vectors outside, lines inside: a pair of vectors stays in the first cache for all lines.
RS_INLINE int columns_a_pass(const Lines& lines, int all) { return lines.count <= kMaxRows ? all : 2; }

RS_INLINE void compute_scores(const Lines& lines, int head_dim, Scratch& scratch) {
  const PackedColumns keys{scratch.keys, head_dim};
  const int num_columns = num_vectors(lines.visible[lines.count - 1]);
  const int pass = columns_a_pass(lines, num_columns);
  for (int column = 0; column < num_columns; column += pass) {
    const int end_column = column + pass < num_columns ? column + pass : num_columns;
    for (int line = 0; line < lines.count; line += kMaxRows)
      product_few({lines.q + static_cast<int64_t>(line) * head_dim, head_dim}, rows_at(lines, line),
                  keys, column, end_column, 0, head_dim,
                  {scratch.scores + static_cast<int64_t>(line) * kChunk, kChunk});
  }
}

// Turns a line's scores into p; tokens that it does not see get p = 0.
RS_INLINE void soften(float* scores, int visible, float* m, float* l) {
  const int columns = num_vectors(visible);
  for (int i = visible; i < columns * W; ++i) scores[i] = -INFINITY;
  F32 most = load(scores);
  for (int c = 1; c < columns; ++c) most = max(load(scores + c * W), most);
  *m = reduce_max(most);
  // Where every score is -inf, so that e^(-inf - 0) is 0 and the line's l tells of it.
  const F32 shift = set1(*m == -INFINITY ? 0.0f : *m);
  F32 sum = zero();
  for (int c = 0; c < columns; ++c) {
    const F32 p = exp(load(scores + c * W) - shift);
    store(scores + c * W, p);
    sum += p;
  }
  *l = reduce_add(sum);
}

// acc = p V. A line's sum ends with the last token that it sees, so that a NaN in a later token's
// V cannot reach it: 0 * NaN is NaN.
template <class Columns>
RS_INLINE void sum_values(const Lines& lines, const Columns& values, int head_dim, Scratch& scratch,
                          float* acc) {
  const int num_columns = num_vectors(head_dim), pass = columns_a_pass(lines, num_columns);
  const int64_t width = static_cast<int64_t>(num_columns) * W;
  for (int column = 0; column < num_columns; column += pass) {
    const int end_column = column + pass < num_columns ? column + pass : num_columns;
    for (int line = 0; line < lines.count; line += kMaxRows)
      product_few({scratch.scores + static_cast<int64_t>(line) * kChunk, kChunk},
                  rows_at(lines, line), values, column, end_column, 0, lines.visible[line],
                  {acc + line * width, width});
  }
  for (int line = 0; line < lines.count; ++line) {
    const int seen_together = lines.visible[line / kMaxRows * kMaxRows];
    if (lines.visible[line] > seen_together)
      product_few({scratch.scores + static_cast<int64_t>(line) * kChunk, kChunk}, 1, values, 0,
                  num_columns, seen_together, lines.visible[line], {acc + line * width, width});
  }
}

// Computes the partial results of all lines. Meanwhile asks for the chunk that comes next, if any.
template <class T>
void attend_chunk(const ChunkKV<T>& kv, const ChunkKV<T>* next, const Lines& lines, int head_dim,
                  Scratch& scratch, const Partials& out) {
  pack_keys(kv, next, head_dim, scratch);
  compute_scores(lines, head_dim, scratch);
  for (int line = 0; line < lines.count; ++line)
    soften(scratch.scores + static_cast<int64_t>(line) * kChunk, lines.visible[line], out.m + line,
           out.l + line);
  if (lines.count <= kMaxRows && head_dim % W == 0) {
    sum_values(lines, PoolColumns<T>{kv.v, kv.offsets}, head_dim, scratch, out.acc);
  } else {
    pack_values(kv, head_dim, scratch);
    sum_values(lines, PackedColumns{scratch.values, kChunk}, head_dim, scratch, out.acc);
  }
}

}  // namespace rs::RS_VARIANT
