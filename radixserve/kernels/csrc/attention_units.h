// What one load from a pool gives, for each dtype of the pools.
#pragma once

#include <cstddef>
#include <utility>

#include "attention_schedule.h"
#include "simd.h"

namespace rs::RS_VARIANT {

// Vectors that a load from a pool gives.
template <class T>
constexpr int kUnit = 2;
template <>
inline constexpr int kUnit<float> = 1;

// Whether they are those at even places and those at odd ones, which is quicker than to widen them in
// order: accumulated rows are kept in this order and are put right at the end.
template <class T>
constexpr bool kIsSplit = false;
template <>
inline constexpr bool kIsSplit<uint16_t> = true;

RS_INLINE void load_unit(const float* p, F32* unit) { unit[0] = load(p); }
RS_INLINE void load_unit(const uint16_t* p, F32* unit) {
  U32 pairs;
  std::memcpy(&pairs, p, sizeof pairs);
  unit[0] = (F32)(pairs << 16);
  unit[1] = (F32)(pairs & 0xffff0000u);
}
RS_INLINE void load_unit(const int8_t* p, F32* unit) {
  unit[0] = load_i8(p);
  unit[1] = load_i8(p + W);
}

template <size_t... I>
RS_INLINE void take_turns(F32* unit, std::index_sequence<I...>) {
  const F32 even = unit[0], odd = unit[1];
  unit[0] = __builtin_shufflevector(even, odd, (I / 2 + I % 2 * W)...);
  unit[1] = __builtin_shufflevector(even, odd, (W / 2 + I / 2 + I % 2 * W)...);
}
// Puts the vectors of a unit in their right order.
template <class T>
RS_INLINE void put_right(F32* unit) {
  if constexpr (kIsSplit<T>) take_turns(unit, std::make_index_sequence<W>{});
}

// The first n elements of a unit, zeros behind them.
template <class T>
RS_INLINE void load_unit_n(const T* p, int n, F32* unit) {
  if (n >= kUnit<T> * W) return load_unit(p, unit);
  T elements[kUnit<T> * W] = {};
  for (int i = 0; i < n; ++i) elements[i] = p[i];
  load_unit(elements, unit);
}

// Writes the first n elements of a unit in their right order.
template <class T>
RS_INLINE void store_unit_n(float* p, F32* unit, int n) {
  put_right<T>(unit);
  for (int u = 0; u < kUnit<T> && n > u * W; ++u) {
    const int left = n - u * W;
    store_n(p + u * W, unit[u], left < W ? left : W);
  }
}

// W elements in their right order.
RS_INLINE F32 load_in_order(const float* p) { return load(p); }
RS_INLINE F32 load_in_order(const uint16_t* p) { return load_bf16(p); }
RS_INLINE F32 load_in_order(const int8_t* p) { return load_i8(p); }

// Vectors that a load of some group's tokens gives, where K lies with its tokens innermost.
template <class T>
constexpr int kGroupUnit = kUnit<T> * W <= kGroup ? kUnit<T> : 1;

template <class T>
RS_INLINE void load_group_unit(const T* p, F32* unit) {
  if constexpr (kGroupUnit<T> == kUnit<T>) {
    load_unit(p, unit);
  } else {
    unit[0] = load_in_order(p);
  }
}

template <class T>
RS_INLINE void put_group_unit_right(F32* unit) {
  if constexpr (kGroupUnit<T> == kUnit<T>) put_right<T>(unit);
}

}  // namespace rs::RS_VARIANT
