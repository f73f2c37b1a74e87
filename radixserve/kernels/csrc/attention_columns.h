// The two orders in which a matrix product finds its right-hand matrix: a vector of W columns at a
// time, row after row.
//
// K lies as [token][d] and scores need W tokens side by side, so it is transposed; V lies right.
#pragma once

#include <cstddef>
#include <utility>

#include "simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rs::RS_VARIANT {

// Vectors that a load from a pool gives. Two of bfloat16, those at even places and those at odd
// ones, which is quicker than to widen them in order: accumulated rows are kept in this order and
// are put right at the end.
template <class T>
constexpr int kUnit = 1;
template <>
inline constexpr int kUnit<uint16_t> = 2;

RS_INLINE void load_unit(const float* p, F32* unit) { unit[0] = load(p); }
RS_INLINE void load_unit(const uint16_t* p, F32* unit) {
  U32 pairs;
  std::memcpy(&pairs, p, sizeof pairs);
  unit[0] = (F32)(pairs << 16);
  unit[1] = (F32)(pairs & 0xffff0000u);
}

// The first n elements of a unit, zeros behind them.
template <class T>
RS_INLINE void load_unit_n(const T* p, int n, F32* unit) {
  if (n >= kUnit<T> * W) return load_unit(p, unit);
  T elements[kUnit<T> * W] = {};
  for (int i = 0; i < n; ++i) elements[i] = p[i];
  load_unit(elements, unit);
}

// Writes the first n elements of a unit in their right order.
template <class T>
RS_INLINE void store_unit_n(float* p, const F32* unit, int n) {
  if constexpr (kUnit<T> == 1) {
    store_n(p, unit[0], n < W ? n : W);
  } else {
    for (int i = 0; i < n && i < 2 * W; ++i) p[i] = unit[i % 2][i / 2];
  }
}

// Column vectors one after the other, each [depth][W].
struct PackedColumns {
  static constexpr int unit = 1;
  const float* data;
  int64_t depth;
  RS_INLINE void at(const PackedColumns& columns, int64_t row, int column, F32* vectors) {
    vectors[0] = load(columns.data + (column * columns.depth + row) * W);
  }
  template <int num_vectors>
  RS_INLINE void prefetch(const PackedColumns&, int64_t, int) {}
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

  RS_INLINE void at(const KeyColumns& columns, int64_t row, int column, F32* vectors) {
    PackedColumns::at(columns.packed, row, column, vectors);
  }
  template <int num_vectors>
  RS_INLINE void prefetch(const KeyColumns& columns, int64_t k, int column) {
    constexpr unsigned tokens = num_vectors * W, size = sizeof(T);
    constexpr unsigned every = tokens * size < 128 ? 128 / (tokens * size) : 1;
    constexpr unsigned lines = tokens * size > 128 ? tokens * size / 128 : 1;
    const auto depth = static_cast<unsigned>(k);
    if (depth % every) return;
    for (unsigned i = 0; i < lines; ++i) {
      const unsigned step = depth / every * lines + i;
      const int d = columns.begin + static_cast<int>(step / tokens) * Wanted<T>::line;
      if (d >= columns.end) continue;
      const int64_t token = columns.token + column * W + step % tokens;
      __builtin_prefetch(columns.wanted.base + columns.wanted.offsets[token] + d, 0, 2);
    }
  }
};

// Rows of V wherever they lie in a pool, in the pool's own dtype. While they are read, as much of
// the wanted rows is asked for.
template <class T>
struct PoolColumns {
  static constexpr int unit = kUnit<T>;
  const T* base;
  const int64_t* offsets;
  Wanted<T> wanted;

  RS_INLINE void at(const PoolColumns& columns, int64_t row, int column, F32* vectors) {
    load_unit(columns.base + columns.offsets[row] + column * W, vectors);
  }
  template <int num_vectors>
  RS_INLINE void prefetch(const PoolColumns& columns, int64_t row, int column) {
    Wanted<T>::prefetch(columns.wanted, row, column * W, (column + num_vectors) * W);
  }
};

// In each group of 16 bytes, the elements of the group's lower (upper) half of a and b in turn.
template <class E, bool is_upper, size_t... I>
RS_INLINE U32 interleave_at(U32 a, U32 b, std::index_sequence<I...>) {
  typedef E V __attribute__((vector_size(4 * RS_WIDTH)));  // GCC ignores this in a `using`
  constexpr size_t n = 16 / sizeof(E), all = sizeof...(I);
  return (U32)__builtin_shufflevector(
      (V)a, (V)b, (I / n * n + (is_upper ? n / 2 : 0) + I % n / 2 + (I % 2 ? all : 0))...);
}
template <class E, bool is_upper>
RS_INLINE U32 interleave(U32 a, U32 b) {
  return interleave_at<E, is_upper>(a, b, std::make_index_sequence<4 * W / sizeof(E)>{});
}

using Lane = uint32_t __attribute__((vector_size(16)));
using Lanes2 = uint32_t __attribute__((vector_size(32)));
using Lanes4 = uint32_t __attribute__((vector_size(64)));

RS_INLINE Lanes2 join(Lane a, Lane b) {
#if defined(__AVX2__)  // told plainly, GCC reads b straight from memory
  return (Lanes2)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)a), (__m128i)b, 1);
#else
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
#endif
}
RS_INLINE Lanes4 join(Lanes2 a, Lanes2 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

template <class T>
RS_INLINE Lane load_lane(const T* p) {
  Lane lane;
  std::memcpy(&lane, p, sizeof lane);
  return lane;
}

// 16 bytes of each of rows i, i + 4, i + 8, ..., at element d: W / 4 rows.
template <int width, class T>
RS_INLINE auto load_rows(const T* const* rows, int i, int64_t d) {
  if constexpr (width == 4) {
    return load_lane(rows[i] + d);
  } else {
    return join(load_rows<width / 2>(rows, i, d), load_rows<width / 2>(rows, i + width / 2, d));
  }
}

// Writes W rows of head_dim elements as one column vector, [head_dim][W].
RS_INLINE void transpose(const float* const* rows, int64_t head_dim, float* column) {
  for (int64_t d = 0; d < head_dim; d += 4, column += 4 * W) {
    const U32 a0 = load_rows<W>(rows, 0, d), a1 = load_rows<W>(rows, 1, d);
    const U32 a2 = load_rows<W>(rows, 2, d), a3 = load_rows<W>(rows, 3, d);
    const U32 b0 = interleave<uint32_t, false>(a0, a1), b1 = interleave<uint32_t, true>(a0, a1);
    const U32 b2 = interleave<uint32_t, false>(a2, a3), b3 = interleave<uint32_t, true>(a2, a3);
    store(column, (F32)interleave<uint64_t, false>(b0, b2));
    store(column + W, (F32)interleave<uint64_t, true>(b0, b2));
    store(column + 2 * W, (F32)interleave<uint64_t, false>(b1, b3));
    store(column + 3 * W, (F32)interleave<uint64_t, true>(b1, b3));
  }
}

// The same from bfloat16. Transposed before it is widened, so that half as much moves; widening is
// one more interleaving, with zeros as the lower halves.
RS_INLINE void transpose(const uint16_t* const* rows, int64_t head_dim, float* column) {
  for (int64_t d = 0; d < head_dim; d += 8, column += 8 * W) {
    const U32 a0 = load_rows<W>(rows, 0, d), a1 = load_rows<W>(rows, 1, d);
    const U32 a2 = load_rows<W>(rows, 2, d), a3 = load_rows<W>(rows, 3, d);
    const U32 b0 = interleave<uint16_t, false>(a0, a1), b1 = interleave<uint16_t, true>(a0, a1);
    const U32 b2 = interleave<uint16_t, false>(a2, a3), b3 = interleave<uint16_t, true>(a2, a3);
    const U32 pairs[4] = {interleave<uint32_t, false>(b0, b2), interleave<uint32_t, true>(b0, b2),
                          interleave<uint32_t, false>(b1, b3), interleave<uint32_t, true>(b1, b3)};
    for (int i = 0; i < 4; ++i) {
      store(column + 2 * i * W, (F32)interleave<uint16_t, false>(U32{}, pairs[i]));
      store(column + (2 * i + 1) * W, (F32)interleave<uint16_t, true>(U32{}, pairs[i]));
    }
  }
}

}  // namespace rs::RS_VARIANT
