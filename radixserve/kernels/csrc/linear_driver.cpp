#include <cmath>

#include "bfloat16.h"
#include "driver.h"
#include "ops.h"
#include "packed_linear.h"

namespace rs {
namespace {

double truth(const View& x, const View& weight, const View& bias, int64_t row, int64_t output) {
  double sum = bias.as<float>()[output];
  for (int64_t k = 0; k < weight.shape[1]; ++k) {
    const float value = weight.dtype == DType::float32
                            ? weight.row<const float>(output)[k]
                            : widened(weight.row<const uint16_t>(output)[k]);
    sum += static_cast<double>(x.row<const float>(row)[k]) * value;
  }
  return sum;
}

}  // namespace

void drive_linears(Random& random) {
  const int64_t rows = random.number(1, 20), inputs = random.number(1, 40);
  const int64_t outputs = 2 * random.number(1, 50);
  const DType from = random.number(0, 1) ? DType::float32 : DType::bfloat16;
  const View x = Random::columns(random.array(DType::float32, {rows, inputs + 3}), 2, inputs + 2);
  const View weight = random.array(from, {outputs, inputs});
  const View bias = random.array(DType::float32, {outputs});
  const View out = random.array(DType::float32, {rows, outputs});
  const View halves = random.array(DType::float32, {rows, outputs / 2});
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8}) {
    const auto weights = std::make_shared<PackedLinear>(weight, dtype, &bias);
    Program program;
    add_linear(program, x, weights, out, false);
    add_linear(program, x, weights, out, true);
    add_linear_swiglu(program, x, weights, halves);
    program.run(rows);
    program.run(0);
    const double tolerance = dtype == DType::float32 ? 1e-4 : 0.2;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t output = 0; output < outputs; ++output)
        expect(std::fabs(out.row<float>(row)[output] -
                         2 * truth(x, weight, bias, row, output)) < tolerance * inputs,
               "a product is far from its truth");
  }
}

}  // namespace rs
