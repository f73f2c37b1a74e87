#include "matmul.h"

#include <algorithm>
#include <vector>

#include "packed_linear.h"
#include "rows.h"
#include "threads.h"
#include "variants.h"

namespace rs {
namespace {

// Weights that one task keeps in its core's second-level cache while rows pass.
constexpr int64_t kGroupBytes = 192 << 10;

// Tasks for each thread, where there is enough to do: so that a slow core takes fewer.
constexpr int64_t kTasksPerThread = 6;

// Rows of one task, at most, when there are many: full passes only.
int64_t row_chunk(int64_t rows, int64_t max_rows) {
  const int64_t passes = 96 / max_rows;
  return rows <= passes * max_rows ? rows : passes * max_rows;
}

int64_t panels_per_task(int64_t panels, int64_t bytes_per_panel, int64_t row_chunks) {
  const int64_t fits = std::max<int64_t>(1, kGroupBytes / bytes_per_panel);
  const int64_t wanted = std::max<int64_t>(1, kTasksPerThread * num_threads() / row_chunks);
  return std::clamp<int64_t>(panels / wanted, 1, fits);
}

// Memory of the thread that asks for products, kept from one to the next.
struct Scratch {
  std::vector<int16_t> values;
  std::vector<float> scales;
};

thread_local Scratch t_scratch;

QuantizedRows quantize(const MatmulKernels& kernels, const float* x, int64_t x_stride, int64_t size,
                       int64_t rows) {
  const int64_t num_groups = (size + kGroup - 1) / kGroup, stride = num_groups * kGroup;
  Scratch& scratch = t_scratch;
  if (static_cast<int64_t>(scratch.values.size()) < rows * stride)
    scratch.values.resize(rows * stride);
  if (static_cast<int64_t>(scratch.scales.size()) < rows * num_groups)
    scratch.scales.resize(rows * num_groups);
  int16_t* const values = scratch.values.data();
  float* const scales = scratch.scales.data();
  for_rows(rows, size, [&](int64_t row) {
    kernels.quantize(x + row * x_stride, size, values + row * stride, scales + row * num_groups);
  });
  return {.values = values, .scales = scales, .stride = stride, .num_groups = num_groups};
}

}  // namespace

void multiply(const PackedLinear& weights, Epilogue epilogue, const float* x, int64_t x_stride,
              float* out, int64_t out_stride, int64_t rows) {
  if (rows <= 0) return;
  const int64_t halves = epilogue == Epilogue::swiglu ? 2 : 1;
  const MatmulKernels& kernels = *variant().matmul;
  const Product product{
      .panels = weights.panels(),
      .panel_bytes = weights.panel_bytes(),
      .dtype = weights.dtype(),
      .scales = weights.scales(),
      .bias = weights.bias(),
      .num_inputs = weights.num_inputs(),
      .num_panels = weights.num_panels(),
      .num_results = weights.num_outputs() / halves,
      .epilogue = epilogue,
      .x = x,
      .x_stride = x_stride,
      .quantized = weights.dtype() == DType::int8
                       ? quantize(kernels, x, x_stride, weights.num_inputs(), rows)
                       : QuantizedRows{},
      .out = out,
      .out_stride = out_stride,
  };
  const int64_t panels = (product.num_results + kPanel - 1) / kPanel;
  const int64_t chunk = row_chunk(rows, kernels.max_rows);
  const int64_t row_chunks = (rows + chunk - 1) / chunk;
  const int64_t group = panels_per_task(panels, weights.panel_bytes() * halves, row_chunks);
  const int64_t groups = (panels + group - 1) / group;
  // Row chunks of one group follow one another: its weights come from the cache the second time.
  parallel_for(groups * row_chunks, [&](int64_t task) {
    const int64_t panel = task / row_chunks * group;
    const int64_t row = task % row_chunks * chunk;
    kernels.multiply(product, {.panel_begin = panel,
                               .panel_end = std::min(panel + group, panels),
                               .row_begin = row,
                               .row_end = std::min(row + chunk, rows)});
  });
}

}  // namespace rs
