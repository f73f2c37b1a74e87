// K that lies as [token][d] becomes a vector of columns: W tokens side by side, which scores need.
#pragma once

#include <cstddef>
#include <utility>

#include "simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rs::RS_VARIANT {

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

// From int8, a number at a time: only pools whose blocks are no multiple of kGroup lie like this.
RS_INLINE void transpose(const int8_t* const* rows, int64_t head_dim, float* column) {
  for (int64_t d = 0; d < head_dim; ++d)
    for (int i = 0; i < W; ++i) column[d * W + i] = rows[i][d];
}

}  // namespace rs::RS_VARIANT
