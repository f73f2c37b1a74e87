#include <cstring>
#include <memory>
#include <vector>

#include "checks.h"
#include "elementwise.h"
#include "ops.h"
#include "rows.h"
#include "variants.h"

namespace rs {
namespace {

// Where one token of one head goes.
struct Place {
  int64_t block, offset, head;

  int64_t in(const View& pool) const {
    return block * pool.strides[0] + offset * pool.strides[1] + head * pool.strides[2];
  }
};

// Elements that lie side by side to where they lie `stride` apart.
template <class T>
void scatter(const T* from, int64_t size, int64_t stride, T* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(size) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < size; ++i) to[i * stride] = from[i];
}

// Room for a head as a pool holds it, kept from row to row.
template <class T>
T* head_of(int64_t size) {
  thread_local std::vector<T> room;
  if (static_cast<int64_t>(room.size()) < size) room.resize(static_cast<size_t>(size));
  return room.data();
}

void write_head(const float* values, int64_t size, const View& pool, const View& scale,
                const Place& place) {
  const ElementwiseKernels& kernels = *variant().elementwise;
  const int64_t stride = pool.strides[3], start = place.in(pool);
  if (pool.dtype == DType::float32) {
    scatter(values, size, stride, pool.as<float>() + start);
  } else if (pool.dtype == DType::bfloat16) {
    uint16_t* const to = pool.as<uint16_t>() + start;
    uint16_t* const narrow = stride == 1 ? to : head_of<uint16_t>(size);
    kernels.narrow_bf16(values, size, narrow);
    if (stride != 1) scatter(narrow, size, stride, to);
  } else {
    int8_t* const codes = head_of<int8_t>(size);
    scale.as<float>()[place.in(scale)] = kernels.quantize(values, size, codes);
    scatter(codes, size, stride, pool.as<int8_t>() + start);
  }
}

struct WriteKVOp final : Op {
  View k, v, slots;
  KVPool pool;

  const char* name() const override { return "write_kv"; }
  void run(int64_t rows) override {
    const int64_t block_size = pool.k.shape[1];
    Checks("write_kv").indices("slots", slots, rows, pool.k.shape[0] * block_size);
    for_rows(rows, 2 * k.width(), [&](int64_t row) {
      const int64_t slot = slots.as<const int64_t>()[row * slots.strides[0]];
      for (int64_t head = 0; head < k.shape[1]; ++head) {
        const Place place{slot / block_size, slot % block_size, head};
        write_head(k.row<const float>(row) + head * k.strides[1], k.shape[2], pool.k, pool.k_scale,
                   place);
        write_head(v.row<const float>(row) + head * v.strides[1], k.shape[2], pool.v, pool.v_scale,
                   place);
      }
    });
  }
};

}  // namespace

void add_write_kv(Program& program, const View& k, const View& v, const View& slots,
                  const KVPool& pool) {
  const Checks checks("write_kv");
  checks.array("k", k, {DType::float32}, {-1, -1, -1});
  checks.array("v", v, {DType::float32}, {k.shape[0], k.shape[1], k.shape[2]});
  checks.array("slots", slots, {DType::int64}, {k.shape[0]});
  pool.check(checks, k.shape[1], k.shape[2]);
  auto op = std::make_unique<WriteKVOp>();
  op->k = k, op->v = v, op->slots = slots, op->pool = pool;
  program.add(std::move(op), k.shape[0]);
}

}  // namespace rs
