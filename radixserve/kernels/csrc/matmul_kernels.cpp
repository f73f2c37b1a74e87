// Compiled once per variant. See matmul.h for the rule about the order of sums.
#include "matmul.h"

#include "packed_linear.h"
#include "simd.h"

namespace rs::RS_VARIANT {
namespace {

constexpr int V = static_cast<int>(kPanel) / W;  // vectors a panel is wide

// Rows of one pass: as many as registers hold sums of, beside the weights and one broadcast.
// Panels of one pass, where rows are few: enough sums to hide the latency of a multiply-add on two
// ports, and no more, as each panel is one more stream from memory.
#if defined(__AVX512F__)
constexpr int kRowSums = 24, kPanelSums = 12;
#else
constexpr int kRowSums = 12, kPanelSums = 8;
#endif
constexpr int kMaxRows = kRowSums / V < 6 ? kRowSums / V : 6;

constexpr int panels_at_once(int rows) {
  const int fit = kPanelSums / (rows * V);
  return fit < 1 ? 1 : fit < 4 ? fit : 4;
}

RS_INLINE F32 widen_weights(const float* p) { return load(p); }
RS_INLINE F32 widen_weights(const uint16_t* p) { return load_bf16(p); }

// k that one step over a panel takes.
template <class T>
constexpr int64_t kInputsAStep = 1;
template <>
inline constexpr int64_t kInputsAStep<int8_t> = 2;

// Bytes of a panel that a step reads.
template <class T>
constexpr int64_t kStepBytes = kInputsAStep<T> * kPanel * static_cast<int64_t>(sizeof(T));

// Which weights a pass asks memory for while it computes: those at `offset` bytes from the start of
// each panel and `step` bytes further for each step. Multiply-adds of several rows take so long that
// the processor's own prefetcher falls asleep between two cache lines.
struct Ahead {
  int64_t offset, step;
};

template <int P>
RS_INLINE void ask_ahead(const char* place, int64_t panel_bytes) {
  for (int p = 0; p < P; ++p) __builtin_prefetch(place + p * panel_bytes, 0, 2);
}

template <class T>
RS_INLINE const T* panel_at(const Product& product, int64_t panel) {
  return reinterpret_cast<const T*>(static_cast<const char*>(product.panels) +
                                    panel * product.panel_bytes);
}

// sums[panel][row][16]: the plain sums of R rows over P panels that lie one after another.
template <class T, int R, int P>
void sum_panels(const Product& product, int64_t panel, int64_t row, Ahead ahead, float* sums) {
  F32 acc[P][R][V] = {};
  const float* const x = product.x + row * product.x_stride;
  const T* const panels = panel_at<T>(product, panel);
  const int64_t panel_size = product.num_inputs * kPanel;
  const char* asked = reinterpret_cast<const char*>(panels) + ahead.offset;
  for (int64_t k = 0; k < product.num_inputs; ++k, asked += ahead.step) {
    ask_ahead<P>(asked, product.panel_bytes);
    for (int p = 0; p < P; ++p) {
      F32 weights[V];
      for (int v = 0; v < V; ++v)
        weights[v] = widen_weights(panels + p * panel_size + k * kPanel + v * W);
      for (int r = 0; r < R; ++r) {
        const F32 value = set1(x[r * product.x_stride + k]);
        for (int v = 0; v < V; ++v) acc[p][r][v] = fma(value, weights[v], acc[p][r][v]);
      }
    }
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) store(sums + (p * R + r) * kPanel + v * W, acc[p][r][v]);
}

// One group of quantized rows: whole numbers, so that no order of additions matters.
template <int R, int P>
RS_INLINE void sum_group(const int16_t* values, int64_t stride, const int8_t* panels,
                         int64_t panel_bytes, int64_t steps, const char* asked, int64_t ask_step,
                         I32 (&acc)[P][R][V]) {
  for (int64_t step = 0; step < steps; ++step, asked += ask_step) {
    ask_ahead<P>(asked, panel_bytes);
    for (int p = 0; p < P; ++p) {
      I16 weights[V];
      for (int v = 0; v < V; ++v)
        weights[v] = widen(panels + p * panel_bytes + (step * kPanel + v * W) * 2);
      for (int r = 0; r < R; ++r) {
        const I16 pair = set_pair(values + r * stride + step * 2);
        for (int v = 0; v < V; ++v) acc[p][r][v] += multiply_pairs(weights[v], pair);
      }
    }
  }
}

template <int R, int P>
void sum_quantized(const Product& product, int64_t panel, int64_t row, Ahead ahead, float* sums) {
  const QuantizedRows& rows = product.quantized;
  const int8_t* const panels = panel_at<int8_t>(product, panel);
  const int64_t all_steps = (product.num_inputs + 1) / 2;
  for (int64_t group = 0; group < rows.num_groups; ++group) {
    const int64_t first = group * (kGroup / 2);
    const int64_t steps = all_steps - first < kGroup / 2 ? all_steps - first : kGroup / 2;
    I32 acc[P][R][V] = {};
    sum_group<R, P>(rows.values + row * rows.stride + group * kGroup, rows.stride,
                    panels + first * kStepBytes<int8_t>, product.panel_bytes, steps,
                    reinterpret_cast<const char*>(panels) + ahead.offset + first * ahead.step,
                    ahead.step, acc);
    for (int r = 0; r < R; ++r) {
      const F32 scale = set1(rows.scales[(row + r) * rows.num_groups + group]);
      for (int p = 0; p < P; ++p)
        for (int v = 0; v < V; ++v) {
          float* const sum = sums + (p * R + r) * kPanel + v * W;
          store(sum, fma(to_float(acc[p][r][v]), scale, group == 0 ? zero() : load(sum)));
        }
    }
  }
}

template <class T, int R, int P>
RS_INLINE void sum_of_panels(const Product& product, int64_t panel, int64_t row, Ahead ahead,
                             float* sums) {
  if constexpr (sizeof(T) == 1)
    sum_quantized<R, P>(product, panel, row, ahead, sums);
  else
    sum_panels<T, R, P>(product, panel, row, ahead, sums);
}

void quantize(const float* x, int64_t size, int16_t* values, float* scales) {
  for (int64_t first = 0; first < size; first += kGroup, values += kGroup, ++scales) {
    const int64_t count = size - first < kGroup ? size - first : kGroup;
    const float reach = find_reach(x + first, count);
    const bool is_finite = reach == reach;
    const bool is_zero = !is_finite || reach < 1e-30f;  // below, 32767 / reach may be infinite
    *scales = !is_finite ? NAN : is_zero ? 0.0f : reach / 32767.0f;
    const F32 inverse = set1(is_zero ? 0.0f : 32767.0f / reach);
    for (int64_t i = 0; i < kGroup; i += W) {
      const int64_t left = count - i;
      const F32 value = load_n(x + first + i, left < 0 ? 0 : at_most_w(left));
      // Adding 1.5 * 2^23 leaves the nearest whole number, ties to even, in the low bits.
      const I32 level = !is_finite ? I32{} : (I32)(value * inverse + set1(kRound)) - (I32)set1(kRound);
      store_i16(values + i, level);
    }
  }
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

// R rows from `row`, over P panels from `panel`.
template <class T, int R, int P>
void plain_pass(const Product& product, int64_t panel, int64_t row, Ahead ahead) {
  alignas(64) float sums[P * R * kPanel];
  sum_of_panels<T, R, P>(product, panel, row, ahead, sums);
  for (int p = 0; p < P; ++p) write(product, sums + p * R * kPanel, panel + p, row, R);
}

// Sums and finishes P panels into `to`, where rows are `stride` apart and panels lie side by side.
template <class T, int R, int P>
void finished_panels(const Product& product, int64_t panel, int64_t row, Ahead ahead, float* to,
                     int stride) {
  alignas(64) float sums[P * R * kPanel];
  sum_of_panels<T, R, P>(product, panel, row, ahead, sums);
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v)
        store(to + r * stride + p * kPanel + v * W,
              finish(product, load(sums + (p * R + r) * kPanel + v * W),
                     (panel + p) * kPanel + v * W));
}

// Gate i and up i lie I outputs apart. Where I is no multiple of 16, the ups to the gates of P
// panels are spread over one panel more; the last panel of all may be missing, and is not needed.
template <class T, int R, int P>
void swiglu_pass(const Product& product, int64_t panel, int64_t row, Ahead ahead) {
  constexpr int kGates = P * kPanel, kUps = kGates + kPanel;
  alignas(64) float gates[R * kGates];
  alignas(64) float ups[R * kUps];
  const int64_t size = product.num_results;
  const int64_t first = size / kPanel + panel, offset = size % kPanel;
  finished_panels<T, R, P>(product, panel, row, ahead, gates, kGates);
  finished_panels<T, R, P>(product, first, row, ahead, ups, kUps);
  if (offset > 0 && first + P < product.num_panels)
    finished_panels<T, R, 1>(product, first + P, row, ahead, ups + kGates, kUps);
  for (int r = 0; r < R; ++r) {
    float* const out = product.out + (row + r) * product.out_stride + panel * kPanel;
    for (int i = 0; i < kGates; i += W) {
      const int64_t left = size - panel * kPanel - i;
      if (left <= 0) break;
      const F32 up = load(ups + r * kUps + offset + i);
      store_n(out + i, swiglu(load(gates + r * kGates + i), up), left < W ? left : W);
    }
  }
}

// `rows` rows, at most R, from `row`, over P panels from `panel`.
template <class T, int P, int R>
void pass(const Product& product, int64_t panel, int64_t row, int64_t rows, Ahead ahead) {
  if constexpr (R > 1)
    if (rows < R) return pass<T, P, R - 1>(product, panel, row, rows, ahead);
  if (product.epilogue == Epilogue::swiglu)
    swiglu_pass<T, R, P>(product, panel, row, ahead);
  else
    plain_pass<T, R, P>(product, panel, row, ahead);
}

// The rows of a block over P panels, in passes of equal size or one row more. The first pass finds
// the weights in the cache, because the passes over the panels before have asked for them, each for
// a share. A single pass asks for what it will come to itself, a little later.
template <class T, int P, int R>
void panel_passes(const Product& product, const Block& block, int64_t panel) {
  constexpr int64_t kAhead = 4096;
  const int64_t rows = block.row_end - block.row_begin;
  const int64_t passes = (rows + R - 1) / R;
  for (int64_t i = 0; i < passes; ++i) {
    const int64_t begin = rows * i / passes, end = rows * (i + 1) / passes;
    const Ahead ahead =
        passes == 1 ? Ahead{.offset = kAhead, .step = kStepBytes<T>}
                    : Ahead{.offset = P * product.panel_bytes + product.panel_bytes * i / passes,
                            .step = kStepBytes<T> / passes};
    pass<T, P, R>(product, panel, block.row_begin + begin, end - begin, ahead);
  }
}

// R: the rows of the block, or kMaxRows if there are more.
template <class T, int R = kMaxRows>
void multiply_as(const Product& product, const Block& block) {
  if constexpr (R > 1)
    if (block.row_end - block.row_begin < R) return multiply_as<T, R - 1>(product, block);
  constexpr int P = panels_at_once(R);
  int64_t panel = block.panel_begin;
  for (; panel + P <= block.panel_end; panel += P) panel_passes<T, P, R>(product, block, panel);
  for (; panel < block.panel_end; ++panel) panel_passes<T, 1, R>(product, block, panel);
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
const MatmulKernels matmul_kernels{
    .multiply = multiply, .quantize = quantize, .max_rows = kMaxRows};

}  // namespace rs::RS_VARIANT
