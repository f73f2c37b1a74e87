// `multiply`: rows of float32 activations times packed weights.
//
// Each output is one chain of multiply-adds over k = 0, 1, 2, ... in one lane of one accumulator.
// With int8 weights the activations become 16-bit integers, kGroup of them with one scale; the sum
// over a group is exact, and the chain goes over groups.
//
// How many rows and panels are computed together, and by how many threads, changes which chains run
// side by side and never a chain: an output's bits depend on its row and its weights only.
#pragma once

#include <cstdint>

#include "view.h"

namespace rs {

class PackedLinear;

enum class Epilogue {
  store,   // out = sum
  add,     // out = sum + out
  swiglu,  // out[i] = silu(sum[i]) * sum[I + i], for weights of 2 I outputs
};

// x [rows, K] and out [rows, N or N / 2], both float32 with dense rows any stride apart.
void multiply(const PackedLinear& weights, Epilogue epilogue, const float* x, int64_t x_stride,
              float* out, int64_t out_stride, int64_t rows);

// Activations that share a scale. 127 * 32767 * kGroup fits in 32 bits.
constexpr int64_t kGroup = 128;

// Rows as 16-bit integers: x = value * scale. A group with a NaN or infinity has a NaN for scale.
struct QuantizedRows {
  const int16_t* values;  // [rows][stride], zeros from K on
  const float* scales;    // [rows][num_groups]
  int64_t stride;         // a multiple of kGroup
  int64_t num_groups;
};

// What a kernel is told: the whole product, of which it does one block.
struct Product {
  const void* panels;  // as PackedLinear has them
  int64_t panel_bytes;
  DType dtype;
  const float* scales;  // per output, or nullptr
  const float* bias;    // per output, or nullptr
  int64_t num_inputs;
  int64_t num_panels;
  int64_t num_results;  // outputs, or half of them for swiglu
  Epilogue epilogue;
  const float* x;
  int64_t x_stride;
  QuantizedRows quantized;  // of x, for int8 weights
  float* out;
  int64_t out_stride;
};

// The results of panels [panel_begin, panel_end) (16 results each) for rows [row_begin, row_end).
struct Block {
  int64_t panel_begin, panel_end;
  int64_t row_begin, row_end;
};

struct MatmulKernels {
  void (*multiply)(const Product& product, const Block& block);
  // One row of `size` numbers: values padded with zeros to whole groups, a scale for each group.
  void (*quantize)(const float* x, int64_t size, int16_t* values, float* scales);
  int max_rows;  // rows that one pass over a panel computes
};

}  // namespace rs
