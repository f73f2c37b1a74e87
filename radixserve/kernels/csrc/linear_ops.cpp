#include "checks.h"
#include "matmul.h"
#include "ops.h"
#include "packed_linear.h"

namespace rs {
namespace {

struct LinearOp final : Op {
  View x, out;
  Weights weights;
  Epilogue epilogue = Epilogue::store;

  const char* name() const override {
    return epilogue == Epilogue::swiglu ? "linear_swiglu" : "linear";
  }

  std::span<const std::byte> reads() const override { return weights->memory(); }
  void run(int64_t rows) override {
    multiply(*weights, epilogue, x.as<const float>(), x.strides[0], out.as<float>(),
             out.strides[0], rows);
  }
};

void add(Program& program, const Checks& checks, const View& x, Weights weights, const View& out,
         Epilogue epilogue) {
  const int64_t outputs = weights->num_outputs();
  checks.array("x", x, {DType::float32}, {-1, weights->num_inputs()});
  checks.array("out", out, {DType::float32},
               {x.shape[0], epilogue == Epilogue::swiglu ? outputs / 2 : outputs});
  checks.apart("x", x, "out", out);
  auto op = std::make_unique<LinearOp>();
  op->x = x, op->out = out, op->weights = std::move(weights), op->epilogue = epilogue;
  program.add(std::move(op), x.shape[0]);
}

}  // namespace

void add_linear(Program& program, const View& x, Weights weights, const View& out, bool is_added) {
  add(program, Checks("linear"), x, std::move(weights), out,
      is_added ? Epilogue::add : Epilogue::store);
}

void add_linear_swiglu(Program& program, const View& x, Weights weights, const View& out) {
  const Checks checks("linear_swiglu");
  if (weights->num_outputs() % 2 != 0)
    checks.refuse("the weights must be gate and up, of equal size, got " +
                  std::to_string(weights->num_outputs()) + " outputs");
  add(program, checks, x, std::move(weights), out, Epilogue::swiglu);
}

}  // namespace rs
