#include "draw.h"
#include "driver.h"
#include "ops.h"

namespace rs {
namespace {

void drive_draw(Random& random, const View& logits, int64_t rows) {
  const int64_t size = logits.shape[1];
  const View temperature = random.array(DType::float32, {rows});
  const View min_p = random.array(DType::float32, {rows});
  const View top_k = random.array(DType::int64, {rows}, size + 2);
  const View top_p = random.array(DType::float64, {rows}), u = random.array(DType::float64, {rows});
  const View out_ids = random.array(DType::int64, {rows});
  for (int64_t row = 0; row < rows; ++row)
    if (random.number(0, 1)) *min_p.row<float>(row) = 0.0f;
  draw(logits, rows, size, {temperature, min_p, top_k, top_p, u}, out_ids);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t id = *out_ids.row<int64_t>(row);
    expect(id >= 0 && id < size, "an id of the row is drawn");
    for (int64_t i = 0; *temperature.row<float>(row) < 0 && i < size; ++i)
      expect(logits.row<float>(row)[i] < logits.row<float>(row)[id] ||
                 (logits.row<float>(row)[i] == logits.row<float>(row)[id] && i >= id),
             "a greedy row gets the first of its largest");
  }
}

}  // namespace

// A layer's row operations over bands of one buffer.
void drive_rows(Random& random) {
  const int64_t rows = random.number(1, 12), heads = random.number(1, 3);
  const int64_t head_dim = 2 * random.number(1, 20), width = heads * head_dim;
  const DType kept = random.number(0, 1) ? DType::float32 : DType::bfloat16;
  const View table = random.array(kept, {9, 3 * width});
  const View ids = random.array(DType::int64, {rows}, 9);
  const View buffer = random.array(DType::float32, {rows, 3 * width});
  const View q = Random::as_heads(Random::columns(buffer, 0, width), heads);
  const View k = Random::as_heads(Random::columns(buffer, width, 2 * width), heads);
  const View v = Random::as_heads(Random::columns(buffer, 2 * width, 3 * width), heads);
  const View positions = random.array(DType::int64, {rows}, 7);
  const View cos = random.array(DType::float32, {7, head_dim / 2});
  const View sin = random.array(DType::float32, {7, head_dim / 2});
  const int64_t block_size = random.number(1, 5);
  const View slots = random.array(DType::int64, {rows}, 4 * block_size);
  for (int64_t row = 0; row < rows; ++row) slots.as<int64_t>()[row] = row;  // no two equal
  KVPool pool;
  const DType pool_dtype = random.number(0, 2) ? kept : DType::int8;
  pool.k = random.array(pool_dtype, {12, heads, head_dim, block_size});
  // Tokens innermost: as [blocks, size, heads, D].
  pool.k.shape = {12, block_size, heads, head_dim};
  pool.k.strides = {heads * head_dim * block_size, 1, head_dim * block_size, block_size};
  pool.v = random.array(pool_dtype, {12, block_size, heads, head_dim});
  if (pool.has_scales()) {
    pool.k_scale = random.array(DType::float32, {12, block_size, heads, 1});
    pool.v_scale = random.array(DType::float32, {12, block_size, heads, 1});
  }

  Program program;
  add_embed(program, table, ids, buffer);
  add_rms_norm(program, buffer, random.array(kept, {3 * width}), 1e-5f, buffer);
  add_rms_norm(program, q, random.array(kept, {head_dim}), 1e-5f, q);
  add_rope(program, q, positions, cos, sin);
  add_rope(program, k, positions, cos, sin);
  add_write_kv(program, k, v, slots, pool);
  program.run(rows);

  drive_draw(random, buffer, rows);
}

}  // namespace rs
