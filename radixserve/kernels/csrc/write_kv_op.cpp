#include <cstring>

#include "checks.h"
#include "elementwise.h"
#include "ops.h"
#include "rows.h"
#include "variants.h"

namespace rs {
namespace {

struct WriteKVOp final : Op {
  View k, v, slots, k_pool, v_pool;

  const char* name() const override { return "write_kv"; }
  void run(int64_t rows) override {
    const int64_t block_size = k_pool.shape[1];
    Checks("write_kv").indices("slots", slots, rows, k_pool.shape[0] * block_size);
    for_rows(rows, 2 * k.width(), [&](int64_t row) {
      const int64_t slot = slots.as<const int64_t>()[row * slots.strides[0]];
      write(k, row, k_pool, slot / block_size, slot % block_size);
      write(v, row, v_pool, slot / block_size, slot % block_size);
    });
  }

  static void write(const View& from, int64_t row, const View& pool, int64_t block,
                    int64_t offset) {
    const int64_t head_dim = from.shape[2];
    for (int64_t head = 0; head < from.shape[1]; ++head) {
      const float* const values = from.row<const float>(row) + head * from.strides[1];
      const int64_t place =
          block * pool.strides[0] + offset * pool.strides[1] + head * pool.strides[2];
      if (pool.dtype == DType::bfloat16)
        variant().elementwise->narrow_bf16(values, head_dim, pool.as<uint16_t>() + place);
      else
        std::memcpy(pool.as<float>() + place, values,
                    static_cast<size_t>(head_dim) * sizeof(float));
    }
  }
};

}  // namespace

void add_write_kv(Program& program, const View& k, const View& v, const View& slots,
                  const View& k_pool, const View& v_pool) {
  const Checks checks("write_kv");
  checks.array("k", k, {DType::float32}, {-1, -1, -1});
  checks.array("v", v, {DType::float32}, {k.shape[0], k.shape[1], k.shape[2]});
  checks.array("slots", slots, {DType::int64}, {k.shape[0]});
  checks.array("k_pool", k_pool, {DType::float32, DType::bfloat16},
               {-1, -1, k.shape[1], k.shape[2]});
  checks.array("v_pool", v_pool, {k_pool.dtype},
               {k_pool.shape[0], k_pool.shape[1], k.shape[1], k.shape[2]});
  auto op = std::make_unique<WriteKVOp>();
  op->k = k, op->v = v, op->slots = slots, op->k_pool = k_pool, op->v_pool = v_pool;
  program.add(std::move(op), k.shape[0]);
}

}  // namespace rs
