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
#include "attention_softmax.h"
#include "attention_transpose.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// One KV head of the tokens of one chunk, of which lines see at most `count`.
template <class T>
struct ChunkKV {
  const T* k;
  const T* v;
  const Places* places;  // of all kChunk tokens: all of them this request's
  int count;
  int64_t k_step;  // from one element of K's head to the next
  const float *k_scale, *v_scale;  // of the pool; null where there are none
  int scale_run;                   // scales that lie side by side: kGroup, or 1

  bool has_token_columns() const { return k_step != 1; }
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
  float* acc;  // of acc_width floats, in units of the pool's dtype
  float* m;
  float* l;
};

RS_INLINE int smaller(int a, int b) { return a < b ? a : b; }

// Vectors of columns that are reshaped before all lines are multiplied with them: few enough to
// stay in the first cache, enough for as many sums at once as `product_rows` makes.
RS_INLINE int columns_a_pass(const Lines& lines) { return lines.count <= 3 ? 4 : 2; }

// Tokens [first, first + W) as one vector of columns, be there so many or not: scores of tokens that
// a line does not see are never used. Meanwhile asks for the next chunk's, elements [0, end).
template <class T>
RS_INLINE void pack_keys(const ChunkKV<T>& kv, const Wanted<T>& wanted, int end, int first,
                         int head_dim, float* column) {
  const T* rows[W];
  for (int i = 0; i < W; ++i) {
    rows[i] = kv.k + kv.places->tokens[first + i];
    Wanted<T>::prefetch(wanted, first + i, 0, end);
  }
  transpose(rows, head_dim, column);
}

// The unit of V that begins with `column`, as vectors of columns. Meanwhile asks for the next
// chunk's.
template <class T>
RS_INLINE void pack_values(const ChunkKV<T>& kv, const Wanted<T>& wanted, int column, int head_dim,
                           float* packed) {
  const int d = column * W, end = smaller(d + kUnit<T> * W, head_dim);
  for (int i = 0; i < kv.count; ++i) {
    Wanted<T>::prefetch(wanted, i, d, end);
    F32 unit[kUnit<T>];
    load_unit_n(kv.v + kv.places->tokens[i] + d, head_dim - d, unit);
    for (int u = 0; u < kUnit<T>; ++u) store(packed + (u * kChunk + i) * W, unit[u]);
  }
}

// Vectors of columns [0, num_columns) of keys times all lines; the first one's tokens begin at
// `first`.
RS_INLINE void multiply_keys(const Lines& lines, const PackedColumns& keys, int num_columns,
                             int head_dim, float* scores) {
  for (int row = 0; row < lines.count; row += kMaxRows)
    product_few({lines.q + static_cast<int64_t>(row) * head_dim, head_dim},
                smaller(kMaxRows, lines.count - row), keys, 0, num_columns, 0, head_dim,
                {scores + static_cast<int64_t>(row) * kChunk, kChunk});
}

// Scores from K whose head_dim is innermost.
template <class T>
RS_INLINE void score_rows(const ChunkKV<T>& kv, const ChunkKV<T>& next, const Lines& lines,
                          int head_dim, Scratch& scratch) {
  const int num_columns = num_vectors(lines.visible[lines.count - 1]);
  const int pass = columns_a_pass(lines);
  const bool are_few = lines.count <= kMaxRows;
  const Wanted<T> wanted{next.k, next.places->tokens};
  constexpr int line = Wanted<T>::line;
  const int packing_end = are_few ? (head_dim / 2 + line - 1) / line * line : head_dim;
  for (int first = 0; first < num_columns; first += pass) {
    const int count = smaller(pass, num_columns - first);
    for (int i = 0; i < count; ++i)
      pack_keys(kv, wanted, packing_end, (first + i) * W, head_dim,
                scratch.columns + static_cast<int64_t>(i) * head_dim * W);
    const PackedColumns keys{scratch.columns, head_dim};
    float* const scores = scratch.scores + first * W;
    if (are_few) {
      const KeyColumns<T> columns{keys, wanted, first * W, packing_end, head_dim};
      product_few({lines.q, head_dim}, lines.count, columns, 0, count, 0, head_dim,
                  {scores, kChunk});
    } else {
      multiply_keys(lines, keys, count, head_dim, scores);
    }
  }
}

// Scores from K whose tokens are innermost: few lines straight from the pool, many from widened
// columns.
template <class T>
RS_INLINE void score_groups(const ChunkKV<T>& kv, const ChunkKV<T>& next, const Lines& lines,
                            int head_dim, Scratch& scratch) {
  constexpr int vectors = kGroup / W;
  const int num_groups = (lines.visible[lines.count - 1] + kGroup - 1) / kGroup;
  const KeyGroups<T> groups{kv.k, kv.places->groups, kv.k_step, next.k, next.places->groups};
  if (lines.count <= kMaxRows)
    return product_few({lines.q, head_dim}, lines.count, groups, 0, num_groups * vectors, 0,
                       head_dim, {scratch.scores, kChunk});
  for (int group = 0; group < num_groups; ++group) {
    typename KeyGroups<T>::template Cursor<vectors> cursor(groups, group * vectors);
    for (int d = 0; d < head_dim; ++d) {
      KeyGroups<T>::template Cursor<vectors>::prefetch(cursor, d);
      for (int i = 0; i < vectors; ++i)
        store(scratch.columns + (i * static_cast<int64_t>(head_dim) + d) * W,
              load_in_order(kv.k + kv.places->groups[group] + d * kv.k_step + i * W));
    }
    multiply_keys(lines, {scratch.columns, head_dim}, vectors, head_dim,
                  scratch.scores + group * kGroup);
  }
}

template <class T>
RS_INLINE void compute_scores(const ChunkKV<T>& kv, const ChunkKV<T>& next, const Lines& lines,
                              int head_dim, Scratch& scratch) {
  if (kv.has_token_columns())
    score_groups(kv, next, lines, head_dim, scratch);
  else
    score_rows(kv, next, lines, head_dim, scratch);
}

// Scales of the chunk's tokens side by side; `run` of them lie so already.
RS_INLINE void gather_scales(const float* pool, const Places& places, int count, int run,
                             float* scales) {
  if (run == kGroup) {
    for (int i = 0; i < count; i += kGroup)
      std::memcpy(scales + i, pool + places.scales[i], kGroup * sizeof(float));
  } else {
    for (int i = 0; i < count; ++i) scales[i] = pool[places.scales[i]];
  }
}

// sums (+)= p V for tokens [begin, end) and the first vectors of columns. Sums from token 0 start at
// zero, others go on from what is there.
//
// A line's sum ends with the last token that it sees, so that a NaN in a later token's V cannot
// reach it: 0 * NaN is NaN.
template <class Columns>
RS_INLINE void sum_values(const Lines& lines, const Columns& values, int num_columns,
                          int begin, int end, const float* scores, Sums sums) {
  for (int first = 0; first < lines.count; first += kMaxRows) {
    const int count = smaller(kMaxRows, lines.count - first);
    const Rows rows{scores + static_cast<int64_t>(first) * kChunk, kChunk};
    const Sums tile{sums.data + first * sums.stride, sums.stride};
    const int seen_by_all = smaller(lines.visible[first], end);
    const int rest = seen_by_all > begin ? seen_by_all : begin;
    if (begin < rest) product_few(rows, count, values, 0, num_columns, begin, rest, tile);
    for (int i = 1; i < count; ++i)
      if (const int seen = smaller(lines.visible[first + i], end); seen > rest)
        product_few({rows.data + i * kChunk, kChunk}, 1, values, 0, num_columns, rest, seen,
                    {tile.data + i * sums.stride, sums.stride});
  }
}

// Scores become weights, their maxima and their sums. With scales, scores are of K's numbers before
// and weights for V's numbers after: a token's scale is that of its K, or its V, as a whole.
template <class T>
RS_INLINE void compute_weights(const ChunkKV<T>& kv, const Lines& lines, float* all_scores,
                               Scratch& scratch, const Partials& out) {
  constexpr bool has_scales = sizeof(T) == 1;
  if constexpr (has_scales) {
    gather_scales(kv.k_scale, *kv.places, kv.count, kv.scale_run, scratch.k_scales);
    gather_scales(kv.v_scale, *kv.places, kv.count, kv.scale_run, scratch.v_scales);
  }
  for (int64_t line = 0; line < lines.count; ++line) {
    float* const scores = all_scores + line * kChunk;
    if constexpr (has_scales) apply_scales(scores, lines.visible[line], scratch.k_scales);
    out.m[line] = find_largest(scores, lines.visible[line]);
  }
  for (int64_t line = 0; line < lines.count; ++line) {
    float* const scores = all_scores + line * kChunk;
    out.l[line] = weigh(scores, lines.visible[line], out.m[line]);
    if constexpr (has_scales) apply_scales(scores, lines.visible[line], scratch.v_scales);
  }
}

// Computes the partial results of all lines. Meanwhile asks for the chunk that comes next, which
// may be the same one again; its places are valid for all of kChunk tokens.
template <class T>
void attend_chunk(const ChunkKV<T>& kv, const ChunkKV<T>& next, const Lines& lines, int head_dim,
                  Scratch& scratch, const Partials& out) {
  compute_scores(kv, next, lines, head_dim, scratch);
  float* const scores = scratch.scores;
  compute_weights(kv, lines, scores, scratch, out);
  const int64_t width = acc_width<T>(head_dim);
  const auto num_columns = static_cast<int>(width / W);
  if (lines.count <= kMaxRows && head_dim == width)
    return sum_values(lines,
                      PoolColumns<T>{kv.v, kv.places->tokens, {next.v, next.places->tokens}},
                      num_columns, 0, kChunk, scores, {out.acc, width});
  for (int column = 0; column < num_columns; column += 2) {
    const int count = smaller(2, num_columns - column);
    for (int i = 0; i < count; i += kUnit<T>)
      pack_values(kv, {next.v, next.places->tokens}, column + i, head_dim,
                  scratch.columns + i * kChunk * W);
    sum_values(lines, PackedColumns{scratch.columns, kChunk}, count, 0, kChunk, scores,
               {out.acc + column * W, width});
  }
}

}  // namespace rs::RS_VARIANT
