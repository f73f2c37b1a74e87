// The orders in which a matrix product finds its right-hand matrix: a vector of W columns at a time,
// row after row.
//
// A product goes down the rows by a cursor, which holds the addresses of the vectors that are
// multiplied with at once.
#pragma once

#include "attention_units.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// Column vectors one after the other, each [depth][W].
struct PackedColumns {
  static constexpr int unit = 1;
  const float* data;
  int64_t depth;

  template <int num_vectors>
  struct Cursor {
    const float* start;
    int64_t depth;

    Cursor(const PackedColumns& columns, int column)
        : start(columns.data + column * columns.depth * W), depth(columns.depth) {}
    RS_INLINE void at(const Cursor& cursor, int64_t row, int vector, F32* vectors) {
      vectors[0] = load(cursor.start + (vector * cursor.depth + row) * W);
    }
    RS_INLINE void prefetch(Cursor&, int64_t) {}
  };
  RS_INLINE void put_right(F32*) {}
};

// Rows of a pool that will be needed next. They are asked for little by little, beside the products:
// a core has room for few lines on their way from memory, and whatever else misses the first cache
// waits for that room.
template <class T>
struct Wanted {
  static constexpr int line = 64 / sizeof(T);
  const T* base;
  const int64_t* offsets;

  // Elements [begin, end) of a row.
  RS_INLINE void prefetch(const Wanted& wanted, int64_t row, int begin, int end) {
    const T* const start = wanted.base + wanted.offsets[row];
    for (int d = begin; d < end; d += line) __builtin_prefetch(start + d, 0, 2);
  }
};

// Packed columns of K, for few lines. While num_vectors of them are multiplied with, their tokens'
// wanted rows from element `begin` on are asked for, evenly over the depth if that is two lines of
// each row's four; `token` is the first vector's first.
template <class T>
struct KeyColumns {
  static constexpr int unit = 1;
  PackedColumns packed;
  Wanted<T> wanted;
  int token, begin, end;

  template <int num_vectors>
  struct Cursor {
    PackedColumns::Cursor<num_vectors> packed;
    const KeyColumns& columns;
    int64_t token;

    Cursor(const KeyColumns& keys, int column)
        : packed(keys.packed, column), columns(keys), token(keys.token + column * W) {}
    RS_INLINE void at(const Cursor& cursor, int64_t row, int vector, F32* vectors) {
      PackedColumns::Cursor<num_vectors>::at(cursor.packed, row, vector, vectors);
    }
    RS_INLINE void prefetch(Cursor& cursor, int64_t row) {
      constexpr unsigned tokens = num_vectors * W, size = sizeof(T);
      constexpr unsigned every = tokens * size < 128 ? 128 / (tokens * size) : 1;
      constexpr unsigned lines = tokens * size > 128 ? tokens * size / 128 : 1;
      const auto depth = static_cast<unsigned>(row);
      if (depth % every) return;
      const KeyColumns& keys = cursor.columns;
      for (unsigned i = 0; i < lines; ++i) {
        const unsigned step = depth / every * lines + i;
        const int d = keys.begin + static_cast<int>(step / tokens) * Wanted<T>::line;
        if (d >= keys.end) continue;
        const int64_t offset = keys.wanted.offsets[cursor.token + step % tokens];
        __builtin_prefetch(keys.wanted.base + offset + d, 0, 2);
      }
    }
  };
  RS_INLINE void put_right(F32*) {}
};

// Rows of V wherever they lie in a pool, in the pool's own dtype. While they are read, as much of
// the wanted rows is asked for.
template <class T>
struct PoolColumns {
  static constexpr int unit = kUnit<T>;
  const T* base;
  const int64_t* offsets;
  Wanted<T> wanted;

  template <int num_vectors>
  struct Cursor {
    const T* start;
    const int64_t* offsets;
    const T* wanted;
    const int64_t* wanted_offsets;

    Cursor(const PoolColumns& columns, int column)
        : start(columns.base + column * W),
          offsets(columns.offsets),
          wanted(columns.wanted.base + column * W),
          wanted_offsets(columns.wanted.offsets) {}
    RS_INLINE void at(const Cursor& cursor, int64_t row, int vector, F32* vectors) {
      load_unit(cursor.start + cursor.offsets[row] + vector * W, vectors);
    }
    RS_INLINE void prefetch(Cursor& cursor, int64_t row) {
      for (int d = 0; d < num_vectors * W; d += Wanted<T>::line)
        __builtin_prefetch(cursor.wanted + cursor.wanted_offsets[row] + d, 0, 2);
    }
  };
  RS_INLINE void put_right(F32*) {}
};

// Groups of kGroup tokens of K, which lie with their tokens innermost: the elements of one d are
// `step` from those of the next one. While they are read, as much of the wanted groups is asked for:
// into the first cache if they are needed soon, `locality` 3, else into the second, 2.
template <class T, int locality = 2>
struct KeyGroups {
  static constexpr int unit = kGroupUnit<T>;
  const T* base;
  const int64_t* groups;  // of each group's first token
  int64_t step;
  const T* wanted;
  const int64_t* wanted_groups;

  template <int num_vectors>
  struct Cursor {
    // A group's row is part of a line: the groups take turns to ask for one.
    static constexpr int num_loads = num_vectors / unit;
    static constexpr int num_groups = num_vectors * W < kGroup ? 1 : num_vectors * W / kGroup;
    static constexpr int rows_a_line = 64 / (kGroup * sizeof(T));
    static constexpr int lines_a_row = num_groups < rows_a_line ? 1 : num_groups / rows_a_line;
    const T* loads[num_loads];
    const T* wanted[num_groups];
    int64_t step;

    Cursor(const KeyGroups& columns, int column) : step(columns.step) {
      for (int i = 0; i < num_loads; ++i) {
        const int token = (column + i * unit) * W;
        loads[i] = columns.base + columns.groups[token / kGroup] + token % kGroup;
      }
      for (int i = 0; i < num_groups; ++i)
        wanted[i] = columns.wanted + columns.wanted_groups[column * W / kGroup + i];
    }
    RS_INLINE void at(const Cursor& cursor, int64_t row, int vector, F32* vectors) {
      load_group_unit(cursor.loads[vector / unit] + row * cursor.step, vectors);
    }
    RS_INLINE void prefetch(Cursor& cursor, int64_t row) {
      const T* asked[num_groups];
      for (int i = 0; i < num_groups; ++i) asked[i] = cursor.wanted[i];
      for (int i = 0; i < lines_a_row; ++i)
        __builtin_prefetch(asked[i] + row * cursor.step, 0, locality);
      for (int i = 0; i < num_groups; ++i)
        cursor.wanted[i] = asked[(i + lines_a_row) % num_groups];
    }
  };
  RS_INLINE void put_right(F32* vectors) { put_group_unit_right<T>(vectors); }
};

}  // namespace rs::RS_VARIANT
