// What few lines of several KV heads see of one chunk: two groups of tokens at a time, all heads of
// them before the next two.
//
//   head by head    one head's part of each block, then the next head's: short runs far apart
//   pair by pair    all of a pair of blocks, then of the next one: memory as it lies
//
// Memory and what fetches ahead of it like the second better, most of all where a request's blocks
// lie one after the other. Each score and each sum is made of the same numbers in the same order.
// Two groups, because one has too few sums to hide how long an addition takes, and because V's sums
// go to memory and back with each turn.
#pragma once

#include "attention_chunk.h"
#include "attention_columns.h"
#include "attention_product.h"
#include "attention_schedule.h"
#include "attention_scratch.h"
#include "simd.h"

namespace rs::RS_VARIANT {

constexpr int kPair = 2 * kGroup;

// Rows of V of a pair, as `PoolColumns` reads them. While they are read, two runs of memory that will
// be needed soon are asked for line by line, in their order: not in that of the rows, half of each
// of which is read at a time.
template <class T>
struct PairColumns {
  static constexpr int unit = kUnit<T>;
  const T* base;
  const int64_t* offsets;
  const T* wanted[2];
  int run;  // elements of each, those of kGroup tokens

  template <int num_vectors>
  struct Cursor {
    static constexpr int row_bytes = num_vectors * W * sizeof(T);
    static constexpr int rows_a_line = row_bytes < 64 ? 64 / row_bytes : 1;
    static constexpr int lines_a_row = row_bytes > 64 ? row_bytes / 64 : 1;
    const T* start;
    const int64_t* offsets;
    const T* wanted;
    const T* then;  // after so many lines
    int left;

    Cursor(const PairColumns& columns, int column)
        : start(columns.base + column * W), offsets(columns.offsets), then(columns.wanted[1]) {
      const int asked = column * W * kPair;  // with the columns before
      const bool is_first = asked < columns.run;
      wanted = is_first ? columns.wanted[0] + asked : then + (asked - columns.run);
      left = is_first ? (columns.run - asked) / Wanted<T>::line : 0;
    }
    RS_INLINE void at(const Cursor& cursor, int64_t row, int vector, F32* vectors) {
      load_unit(cursor.start + cursor.offsets[row] + vector * W, vectors);
    }
    RS_INLINE void prefetch(Cursor& cursor, int64_t row) {
      if (rows_a_line > 1 && row % rows_a_line) return;
      for (int i = 0; i < lines_a_row; ++i) {
        __builtin_prefetch(cursor.wanted, 0, 3);
        cursor.wanted += Wanted<T>::line;
        if (--cursor.left == 0) cursor.wanted = cursor.then;
      }
    }
  };
  RS_INLINE void put_right(F32*) {}
};

// Some KV heads of the tokens of one chunk.
template <class T>
struct ChunkHeads {
  ChunkKV<T> first;
  int count;
  int64_t k_stride, v_stride, scale_stride;  // from one head to the next

  ChunkKV<T> at(int head) const {
    ChunkKV<T> kv = first;
    kv.k += head * k_stride;
    kv.v += head * v_stride;
    kv.k_scale += head * scale_stride;
    kv.v_scale += head * scale_stride;
    return kv;
  }
};

// The partial results of one of several heads of so many lines each.
RS_INLINE Partials partials_of(const Partials& all, int64_t head, int64_t lines, int64_t width) {
  return {all.acc + head * lines * width, all.m + head * lines, all.l + head * lines};
}

// The groups of a chunk and, behind them, those of the chunk that comes next.
struct Groups {
  const Places& places;
  const Places& next;
  int count;

  int64_t k(int group) const {
    return group < count ? places.groups[group] : next.groups[group - count];
  }
  int64_t v(int group) const {
    return group < count ? places.tokens[group * kGroup] : next.tokens[(group - count) * kGroup];
  }
};

// Scores of all heads, [head][line][kChunk].
template <class T>
void score_pairs(const ChunkHeads<T>& heads, const Groups& groups, const Lines& lines,
                 int head_dim, float* scores) {
  constexpr int vectors = kGroup / W;
  int64_t wanted[kChunk / kGroup];
  for (int group = 0; group < groups.count; ++group) wanted[group] = groups.k(group + 2);
  for (int group = 0; group < groups.count; group += 2)
    for (int head = 0; head < heads.count; ++head) {
      const ChunkKV<T> kv = heads.at(head);
      const int64_t line = static_cast<int64_t>(head) * lines.count;
      const KeyGroups<T, 3> keys{kv.k, kv.places->groups, kv.k_step, kv.k, wanted};
      product_few({lines.q + line * head_dim, head_dim}, lines.count, keys, group * vectors,
                  smaller(group + 2, groups.count) * vectors, 0, head_dim,
                  {scores + line * kChunk, kChunk});
    }
}

// acc = p V of all heads. Each head asks for its share of the next pair, in the order in which that
// lies: all heads of one block, then of the other.
template <class T>
void sum_pairs(const ChunkHeads<T>& heads, const Groups& groups, const Lines& lines, int head_dim,
               const float* weights, float* acc) {
  const T* const base = heads.first.v;
  const auto run_of = [&](int group, int run) {
    return base + groups.v(group + run / heads.count) + run % heads.count * heads.v_stride;
  };
  for (int group = 0; group < groups.count; group += 2)
    for (int head = 0; head < heads.count; ++head) {
      const int64_t line = static_cast<int64_t>(head) * lines.count;
      const PairColumns<T> values{base + head * heads.v_stride,
                                  heads.first.places->tokens,
                                  {run_of(group + 2, 2 * head), run_of(group + 2, 2 * head + 1)},
                                  kGroup * head_dim};
      sum_values(lines, values, head_dim / W, group * kGroup, (group + 2) * kGroup,
                 weights + line * kChunk, {acc + line * head_dim, head_dim});
    }
}

// Computes the partial results of all heads, which `lines.q` and `out` hold one after the other, from
// K whose tokens are innermost and V whose heads are whole vectors, at most kMaxRows lines each.
// Meanwhile asks for the chunk that comes next, as `attend_chunk` does.
template <class T>
void attend_heads(const ChunkHeads<T>& heads, const Places& next, const Lines& lines, int head_dim,
                  Scratch& scratch, const Partials& out) {
  const int seen = lines.visible[lines.count - 1];
  const Groups groups{*heads.first.places, next, (seen + kGroup - 1) / kGroup};
  score_pairs(heads, groups, lines, head_dim, scratch.scores);
  for (int head = 0; head < heads.count; ++head)
    compute_weights(heads.at(head), lines,
                    scratch.scores + static_cast<int64_t>(head) * lines.count * kChunk, scratch,
                    partials_of(out, head, lines.count, head_dim));
  sum_pairs(heads, groups, lines, head_dim, scratch.scores, out.acc);
}

}  // namespace rs::RS_VARIANT
