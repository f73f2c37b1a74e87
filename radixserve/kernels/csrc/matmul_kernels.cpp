// Compiled once per variant. See matmul.h for the rule about the order of sums.
#include "matmul.h"

#include "packed_linear.h"
#include "simd.h"

namespace rs::RS_VARIANT {
namespace {

constexpr int V = static_cast<int>(kPanel) / W;  // vectors a panel is wide

// Accumulators of one pass: enough to hide the latency of a multiply-add on two ports, and as many
// as registers hold beside the weights and one broadcast.
#if defined(__AVX512F__)
constexpr int kAccumulators = 24;
#else
constexpr int kAccumulators = 12;
#endif
constexpr int kMaxRows = kAccumulators / V < 6 ? kAccumulators / V : 6;
constexpr int kMaxPanels = 4;

constexpr int panels_at_once(int rows) {
  const int fit = kAccumulators / (rows * V);
  return fit < 1 ? 1 : fit < kMaxPanels ? fit : kMaxPanels;
}

RS_INLINE F32 widen_weights(const float* p) { return load(p); }
RS_INLINE F32 widen_weights(const uint16_t* p) { return load_bf16(p); }
RS_INLINE F32 widen_weights(const int8_t* p) { return load_i8(p); }

// sums[panel][row][16]: the plain sums of R rows over P panels that lie one after another.
template <class T, int R, int P>
void sum_panels(const float* x, int64_t x_stride, const T* panels, int64_t K, float* sums) {
  F32 acc[P][R][V] = {};
  const int64_t panel_size = K * kPanel;
  for (int64_t k = 0; k < K; ++k) {
    for (int p = 0; p < P; ++p) {
      F32 weights[V];
      for (int v = 0; v < V; ++v)
        weights[v] = widen_weights(panels + p * panel_size + k * kPanel + v * W);
      for (int r = 0; r < R; ++r) {
        const F32 value = set1(x[r * x_stride + k]);
        for (int v = 0; v < V; ++v) acc[p][r][v] = fma(value, weights[v], acc[p][r][v]);
      }
    }
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) store(sums + (p * R + r) * kPanel + v * W, acc[p][r][v]);
}

// The functions that follow are not templates and are not inlined, so that there is one copy of
// their arithmetic, whatever the number of rows: a compiler may round two copies differently.

// What the sums of one panel become: scaled, with the bias. Padding beyond N has both as 0.
__attribute__((noinline)) F32 finish(const Product& product, F32 sum, int64_t output) {
  const F32 bias = product.bias == nullptr ? zero() : load(product.bias + output);
  return product.scales == nullptr ? sum + bias : fma(sum, load(product.scales + output), bias);
}

__attribute__((noinline)) F32 swiglu(F32 gate, F32 up) { return gate / (1.0f + exp(-gate)) * up; }

void write(const Product& product, const float* sums, int64_t panel, int64_t row, int rows) {
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < V; ++v) {
      const int64_t output = panel * kPanel + v * W;
      const int64_t left = product.num_results - output;
      if (left <= 0) break;
      const int64_t count = left < W ? left : W;
      float* const out = product.out + (row + r) * product.out_stride + output;
      F32 result = finish(product, load(sums + r * kPanel + v * W), output);
      if (product.epilogue == Epilogue::add) result = result + load_n(out, count);
      store_n(out, result, count);
    }
  }
}

// R rows, from `row`, over the panels of a block.
template <class T, int R>
void plain_pass(const Product& product, const Block& block, int64_t row) {
  constexpr int P = panels_at_once(R);
  alignas(64) float sums[P * R * kPanel];
  const int64_t panel_size = product.num_inputs * kPanel;
  const T* const panels = static_cast<const T*>(product.panels);
  const float* const x = product.x + row * product.x_stride;
  int64_t panel = block.panel_begin;
  for (; panel + P <= block.panel_end; panel += P) {
    sum_panels<T, R, P>(x, product.x_stride, panels + panel * panel_size, product.num_inputs, sums);
    for (int p = 0; p < P; ++p) write(product, sums + p * R * kPanel, panel + p, row, R);
  }
  for (; panel < block.panel_end; ++panel) {
    sum_panels<T, R, 1>(x, product.x_stride, panels + panel * panel_size, product.num_inputs, sums);
    write(product, sums, panel, row, R);
  }
}

// Sums and finishes the panel into [R][stride] floats.
template <class T, int R>
void finished_panel(const Product& product, int64_t panel, int64_t row, float* to, int stride) {
  alignas(64) float sums[R * kPanel];
  const int64_t K = product.num_inputs;
  sum_panels<T, R, 1>(product.x + row * product.x_stride, product.x_stride,
                      static_cast<const T*>(product.panels) + panel * K * kPanel, K, sums);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      store(to + r * stride + v * W,
            finish(product, load(sums + r * kPanel + v * W), panel * kPanel + v * W));
}

// Gate i and up i lie I outputs apart. Where I is no multiple of 16, the ups of one panel of gates
// are spread over two panels.
template <class T, int R>
void swiglu_pass(const Product& product, const Block& block, int64_t row) {
  constexpr int kUps = 2 * kPanel;
  alignas(64) float gates[R * kPanel];
  alignas(64) float ups[R * kUps];
  const int64_t size = product.num_results;
  for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
    const int64_t first = (size + panel * kPanel) / kPanel, offset = size % kPanel;
    finished_panel<T, R>(product, panel, row, gates, kPanel);
    finished_panel<T, R>(product, first, row, ups, kUps);
    if (offset > 0 && first + 1 < product.num_panels)
      finished_panel<T, R>(product, first + 1, row, ups + kPanel, kUps);
    for (int r = 0; r < R; ++r) {
      float* const out = product.out + (row + r) * product.out_stride + panel * kPanel;
      for (int v = 0; v < V; ++v) {
        const int64_t left = size - panel * kPanel - v * W;
        if (left <= 0) break;
        const F32 gate = load(gates + r * kPanel + v * W);
        const F32 up = load(ups + r * kUps + offset + v * W);
        store_n(out + v * W, swiglu(gate, up), left < W ? left : W);
      }
    }
  }
}

template <class T, int R>
void pass(const Product& product, const Block& block, int64_t row) {
  if (product.epilogue == Epilogue::swiglu)
    swiglu_pass<T, R>(product, block, row);
  else
    plain_pass<T, R>(product, block, row);
}

// One to kMaxRows rows.
template <class T, int R = kMaxRows>
void any_pass(const Product& product, const Block& block, int64_t row, int64_t rows) {
  if constexpr (R > 1)
    if (rows < R) return any_pass<T, R - 1>(product, block, row, rows);
  pass<T, R>(product, block, row);
}

template <class T>
void multiply_as(const Product& product, const Block& block) {
  const int64_t rows = block.row_end - block.row_begin;
  const int64_t passes = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t i = 0; i < passes; ++i) {  // of equal size, or one row more
    const int64_t begin = rows * i / passes, end = rows * (i + 1) / passes;
    any_pass<T>(product, block, block.row_begin + begin, end - begin);
  }
}

void multiply(const Product& product, const Block& block) {
  switch (product.dtype) {
    case DType::float32: return multiply_as<float>(product, block);
    case DType::bfloat16: return multiply_as<uint16_t>(product, block);
    default: return multiply_as<int8_t>(product, block);
  }
}

}  // namespace

extern const MatmulKernels matmul_kernels;
const MatmulKernels matmul_kernels{.multiply = multiply, .max_rows = kMaxRows};

}  // namespace rs::RS_VARIANT
