// `multiply`: rows of float32 activations times packed weights.
//
// Each output is one chain of multiply-adds over k = 0, 1, 2, ... in one lane of one accumulator.
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

// What a kernel is told: the whole product, of which it does one block.
struct Product {
  const void* panels;  // [num_panels][K][16]
  DType dtype;
  const float* scales;  // per output, or nullptr
  const float* bias;    // per output, or nullptr
  int64_t num_inputs;
  int64_t num_panels;
  int64_t num_results;  // outputs, or half of them for swiglu
  Epilogue epilogue;
  const float* x;
  int64_t x_stride;
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
  int max_rows;  // rows that one pass over a panel computes
};

}  // namespace rs
