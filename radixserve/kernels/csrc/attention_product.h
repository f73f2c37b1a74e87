// The one matrix product of attention: a few rows times vectors of columns.
//
// Each element of the result is summed over the depth in ascending order in one accumulator. How
// many rows and vectors are computed at once is chosen for speed and cannot be seen in the result.
#pragma once

#include "attention_columns.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// Rows computed at once at most: with two vectors of columns they fill 16 registers.
constexpr int kMaxRows = 6;

struct Rows {
  const float* data;
  int64_t stride;
};
struct Sums {
  float* data;
  int64_t stride;
};

// sums[r][c] (+)= rows[r][begin:end] . columns[begin:end][c] for `num_rows` rows and the vectors
// of columns from `column` on. Sums from row 0 start at zero, others go on from what is there.
template <int num_rows, int num_vectors, class Columns>
RS_INLINE void product_tile(Rows rows, const Columns& columns, int column, int begin, int end,
                            Sums sums) {
  F32 acc[num_rows][num_vectors];
  for (int r = 0; r < num_rows; ++r)
    for (int c = 0; c < num_vectors; ++c)
      acc[r][c] = begin == 0 ? zero() : load(sums.data + r * sums.stride + (column + c) * W);
  using Cursor = typename Columns::template Cursor<num_vectors>;
  Cursor cursor(columns, column);
  for (int64_t k = begin; k < end; ++k) {
    Cursor::prefetch(cursor, k);
    if constexpr (num_rows > num_vectors) {
      F32 right[num_vectors];
      for (int c = 0; c < num_vectors; c += Columns::unit)
        Cursor::at(cursor, k, c, right + c);
      for (int r = 0; r < num_rows; ++r) {
        const F32 left = set1(rows.data[r * rows.stride + k]);
        for (int c = 0; c < num_vectors; ++c) acc[r][c] = fma(left, right[c], acc[r][c]);
      }
    } else {
      for (int c = 0; c < num_vectors; c += Columns::unit) {
        F32 right[Columns::unit];
        Cursor::at(cursor, k, c, right);
        const float* left_rows = rows.data + k;
        // With a unit of two there is no register left to keep the left values in: make the
        // compiler load them again rather than keep a sum in memory.
        if constexpr (Columns::unit > 1) asm volatile("" : "+r"(left_rows));
        for (int r = 0; r < num_rows; ++r) {
          const F32 left = set1(left_rows[r * rows.stride]);
          for (int u = 0; u < Columns::unit; ++u) acc[r][c + u] = fma(left, right[u], acc[r][c + u]);
        }
      }
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int c = 0; c < num_vectors; c += Columns::unit) Columns::put_right(acc[r] + c);
    for (int c = 0; c < num_vectors; ++c)
      store(sums.data + r * sums.stride + (column + c) * W, acc[r][c]);
  }
}

// Vectors of columns [column, end_column) for a fixed number of rows: as many vectors at once as
// registers hold, so that enough sums are under way to hide how long each addition takes.
template <int num_rows, class Columns>
void product_rows(Rows rows, const Columns& columns, int column, int end_column, int begin, int end,
                  Sums sums) {
  constexpr int most = num_rows == 1 ? 8 : num_rows <= 3 ? 4 : 2;
  for (; end_column - column >= most; column += most)
    product_tile<num_rows, most>(rows, columns, column, begin, end, sums);
  if constexpr (most > 4)
    for (; end_column - column >= 4; column += 4)
      product_tile<num_rows, 4>(rows, columns, column, begin, end, sums);
  if constexpr (most > 2)
    for (; end_column - column >= 2; column += 2)
      product_tile<num_rows, 2>(rows, columns, column, begin, end, sums);
  if constexpr (Columns::unit == 1)
    if (column < end_column) product_tile<num_rows, 1>(rows, columns, column, begin, end, sums);
}

// At most kMaxRows rows.
template <class Columns>
void product_few(Rows rows, int num_rows, const Columns& columns, int column, int end_column,
                 int begin, int end, Sums sums) {
  switch (num_rows) {
    case 1: return product_rows<1>(rows, columns, column, end_column, begin, end, sums);
    case 2: return product_rows<2>(rows, columns, column, end_column, begin, end, sums);
    case 3: return product_rows<3>(rows, columns, column, end_column, begin, end, sums);
    case 4: return product_rows<4>(rows, columns, column, end_column, begin, end, sums);
    case 5: return product_rows<5>(rows, columns, column, end_column, begin, end, sums);
    case 6: return product_rows<6>(rows, columns, column, end_column, begin, end, sums);
  }
}

}  // namespace rs::RS_VARIANT
