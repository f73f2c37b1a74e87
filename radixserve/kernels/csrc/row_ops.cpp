#include <cstring>
#include <vector>

#include "bfloat16.h"
#include "checks.h"
#include "elementwise.h"
#include "ops.h"
#include "rows.h"
#include "variants.h"

namespace rs {
namespace {

constexpr auto kFloats = {DType::float32, DType::bfloat16};
constexpr auto kFloat32 = {DType::float32};
constexpr auto kInt64 = {DType::int64};

struct EmbedOp final : Op {
  View table, ids, out;

  const char* name() const override { return "embed"; }
  void run(int64_t rows) override {
    Checks("embed").indices("ids", ids, rows, table.shape[0]);
    const ElementwiseKernels& kernels = *variant().elementwise;
    const int64_t width = table.shape[1];
    for_rows(rows, width, [&](int64_t row) {
      const int64_t id = ids.as<const int64_t>()[row * ids.strides[0]];
      float* const to = out.row<float>(row);
      if (table.dtype == DType::bfloat16)
        kernels.widen_bf16(table.row<const uint16_t>(id), width, to);
      else
        std::memcpy(to, table.row<const float>(id), static_cast<size_t>(width) * sizeof(float));
    });
  }
};

struct RmsNormOp final : Op {
  View x, out;
  std::vector<float> weight;
  float eps = 0.0f;

  const char* name() const override { return "rms_norm"; }
  void run(int64_t rows) override {
    const ElementwiseKernels& kernels = *variant().elementwise;
    const auto size = static_cast<int64_t>(weight.size());
    const int64_t heads = x.rank == 3 ? x.shape[1] : 1;
    const int64_t x_step = x.rank == 3 ? x.strides[1] : 0;
    const int64_t out_step = out.rank == 3 ? out.strides[1] : 0;
    for_rows(rows, heads * size, [&](int64_t row) {
      for (int64_t head = 0; head < heads; ++head)
        kernels.rms_norm(x.row<const float>(row) + head * x_step, weight.data(), eps, size,
                         out.row<float>(row) + head * out_step);
    });
  }
};

struct RopeOp final : Op {
  View x, positions, cos, sin;

  const char* name() const override { return "rope"; }
  void run(int64_t rows) override {
    Checks("rope").indices("positions", positions, rows, cos.shape[0]);
    const ElementwiseKernels& kernels = *variant().elementwise;
    for_rows(rows, x.width(), [&](int64_t row) {
      const int64_t position = positions.as<const int64_t>()[row * positions.strides[0]];
      for (int64_t head = 0; head < x.shape[1]; ++head)
        kernels.rotate(x.row<float>(row) + head * x.strides[1], cos.row<const float>(position),
                       sin.row<const float>(position), cos.shape[1]);
    });
  }
};

std::vector<float> float_copy(const View& values) {
  std::vector<float> copy(static_cast<size_t>(values.shape[0]));
  for (size_t i = 0; i < copy.size(); ++i)
    copy[i] = values.dtype == DType::float32 ? values.as<const float>()[i]
                                             : widened(values.as<const uint16_t>()[i]);
  return copy;
}

}  // namespace

void add_embed(Program& program, const View& table, const View& ids, const View& out) {
  const Checks checks("embed");
  checks.array("table", table, kFloats, {-1, -1});
  checks.array("out", out, kFloat32, {-1, table.shape[1]});
  checks.array("ids", ids, kInt64, {out.shape[0]});
  checks.apart("out", out, "table", table);
  auto op = std::make_unique<EmbedOp>();
  op->table = table, op->ids = ids, op->out = out;
  program.add(std::move(op), out.shape[0]);
}

void add_rms_norm(Program& program, const View& x, const View& weight, float eps,
                  const View& out) {
  const Checks checks("rms_norm");
  if (x.rank == 3) {
    checks.array("x", x, kFloat32, {-1, -1, -1});
    checks.array("out", out, kFloat32, {x.shape[0], x.shape[1], x.shape[2]});
  } else {
    checks.array("x", x, kFloat32, {-1, -1});
    checks.array("out", out, kFloat32, {x.shape[0], x.shape[1]});
  }
  checks.array("weight", weight, kFloats, {x.shape[x.rank - 1]});
  checks.apart_or_equal("x", x, "out", out);
  auto op = std::make_unique<RmsNormOp>();
  op->x = x, op->out = out, op->weight = float_copy(weight), op->eps = eps;
  program.add(std::move(op), x.shape[0]);
}

void add_rope(Program& program, const View& x, const View& positions, const View& cos,
              const View& sin) {
  const Checks checks("rope");
  checks.array("x", x, kFloat32, {-1, -1, -1});
  if (x.shape[2] % 2 != 0) checks.refuse("heads must be of even size, got " + x.describe());
  checks.array("positions", positions, kInt64, {x.shape[0]});
  checks.array("cos", cos, kFloat32, {-1, x.shape[2] / 2});
  checks.array("sin", sin, kFloat32, {cos.shape[0], cos.shape[1]});
  auto op = std::make_unique<RopeOp>();
  op->x = x, op->positions = positions, op->cos = cos, op->sin = sin;
  program.add(std::move(op), x.shape[0]);
}

}  // namespace rs
