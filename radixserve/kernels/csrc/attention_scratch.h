// What one thread needs beside its results while it works on an item.
#pragma once

#include "attention.h"
#include "attention_schedule.h"
#include "attention_units.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// Floats of an accumulated row: head_dim in whole units.
template <class T>
RS_INLINE int64_t acc_width(int32_t head_dim) {
  constexpr int unit = kUnit<T> * W;
  return (head_dim + unit - 1) / unit * unit;
}

// Where each token of a chunk lies in the pools, in elements from the pool's first head.
struct Places {
  int64_t tokens[kChunk];           // in V; in K too, where it lies as V does
  int64_t groups[kChunk / kGroup];  // in K, where its tokens are innermost: each group's first one
  int64_t scales[kChunk];           // of the scales, if there are any
};

struct Scratch {
  float* columns;  // up to 4 vectors of columns of K, or 2 of V
  float* scores;  // [max_all_lines][kChunk]
  float* q;       // [max_all_lines][head_dim], scaled
  float *acc, *m, *l;                    // partial results of max_all_lines
  float *state_acc, *state_m, *state_l;  // merged results of max_all_lines
  int32_t* visible;                      // [max_lines]
  float *k_scales, *v_scales;            // [kChunk]
  Places* places[2];                     // of this chunk and of the next
};

// Deals out memory in pieces that begin at multiples of 64 bytes; without memory it only counts.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <class T>
  void take(T*& piece, int64_t count) {
    if (memory_ != nullptr) piece = reinterpret_cast<T*>(memory_ + taken_);
    taken_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }
  int64_t taken() const { return taken_; }

 private:
  char* memory_;
  int64_t taken_ = 0;
};

// Lays the scratch out and returns its size in bytes.
template <class T>
RS_INLINE int64_t lay_out(const AttentionCall& call, void* memory, Scratch& scratch) {
  const int64_t dim = call.head_dim, width = acc_width<T>(call.head_dim);
  const int64_t lines = call.schedule->max_lines, all_lines = call.schedule->max_all_lines;
  Pieces pieces(memory);
  pieces.take(scratch.columns, (4 * dim > 2 * kChunk ? 4 * dim : 2 * kChunk) * W);
  pieces.take(scratch.scores, all_lines * kChunk);
  pieces.take(scratch.q, all_lines * dim);
  pieces.take(scratch.acc, all_lines * width);
  pieces.take(scratch.m, all_lines);
  pieces.take(scratch.l, all_lines);
  pieces.take(scratch.state_acc, all_lines * width);
  pieces.take(scratch.state_m, all_lines);
  pieces.take(scratch.state_l, all_lines);
  pieces.take(scratch.visible, lines);
  pieces.take(scratch.k_scales, kChunk);
  pieces.take(scratch.v_scales, kChunk);
  pieces.take(scratch.places[0], 1);
  pieces.take(scratch.places[1], 1);
  return pieces.taken();
}

}  // namespace rs::RS_VARIANT
