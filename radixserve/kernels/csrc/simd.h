// A vector of RS_WIDTH floats, the only arithmetic that kernels are written in.
//
// To be included by sources that are compiled once per variant: RS_VARIANT names the namespace,
// RS_WIDTH the floats a vector. The same source at another width computes the same sums in
// another order, so results of two variants agree to rounding, not to the bit.
//
// Everything here is inlined. A variant's source may use nothing of the standard library that is
// not inlined too: the linker keeps one copy of such a function, and it might be the one with
// instructions that this machine lacks.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if (RS_WIDTH == 8 && defined(__AVX2__)) || (RS_WIDTH == 16 && defined(__AVX512F__))
#include <immintrin.h>
#endif

#if !defined(RS_VARIANT) || !defined(RS_WIDTH)
#error "compile this source once per variant, with RS_VARIANT and RS_WIDTH defined"
#endif

#define RS_INLINE static inline __attribute__((always_inline))

namespace rs::RS_VARIANT {

constexpr int W = RS_WIDTH;

using F32 = float __attribute__((vector_size(4 * RS_WIDTH)));
using I32 = int32_t __attribute__((vector_size(4 * RS_WIDTH)));  // comparisons of F32 give these
using U32 = uint32_t __attribute__((vector_size(4 * RS_WIDTH)));
using U16 = uint16_t __attribute__((vector_size(2 * RS_WIDTH)));
using I16 = int16_t __attribute__((vector_size(4 * RS_WIDTH)));  // 2 W of them
using I8 = int8_t __attribute__((vector_size(2 * RS_WIDTH)));
using HalfI8 = int8_t __attribute__((vector_size(RS_WIDTH)));  // W of them
using HalfI16 = int16_t __attribute__((vector_size(2 * RS_WIDTH)));  // W of them

RS_INLINE F32 set1(float x) { return x - F32{}; }  // x - 0 keeps -0, which x + 0 would not
RS_INLINE F32 zero() { return F32{}; }

// Unaligned loads and stores of W elements.
RS_INLINE F32 load(const float* p) {
  F32 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
RS_INLINE void store(float* p, F32 v) { std::memcpy(p, &v, sizeof v); }

// The first n of W elements, 0 <= n <= W; the others are 0, and no memory beyond is touched.
RS_INLINE F32 load_n(const float* p, int64_t n) {
  if (n == W) return load(p);
  alignas(sizeof(F32)) float lanes[W] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
RS_INLINE void store_n(float* p, F32 v, int64_t n) {
  if (n == W) return store(p, v);
  alignas(sizeof(F32)) float lanes[W];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// Integers are widened by intrinsics where they are in a kernel's inner loop: GCC takes
// __builtin_convertvector apart, lane by lane.
RS_INLINE U32 widen(U16 half) {
#if RS_WIDTH == 8 && defined(__AVX2__)
  return (U32)_mm256_cvtepu16_epi32((__m128i)half);
#elif RS_WIDTH == 16 && defined(__AVX512F__)
  return (U32)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)half);
#else
  return __builtin_convertvector(half, U32);
#endif
}
RS_INLINE I16 widen(const int8_t* p) {  // 2 W of them
#if RS_WIDTH == 8 && defined(__AVX2__)
  return (I16)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
#elif RS_WIDTH == 16 && defined(__AVX512F__)
  return (I16)_mm512_maskz_cvtepi8_epi16(0xffffffff, _mm256_loadu_si256((const __m256i*)p));
#else
  I8 bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, I16);
#endif
}

// W of them, as floats.
RS_INLINE F32 load_i8(const int8_t* p) {
#if RS_WIDTH == 8 && defined(__AVX2__)
  const I32 numbers = (I32)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#elif RS_WIDTH == 16 && defined(__AVX512F__)
  const I32 numbers =
      (I32)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)p));
#else
  HalfI8 bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const I32 numbers = __builtin_convertvector(bytes, I32);
#endif
  return __builtin_convertvector(numbers, F32);
}

// The same pair in every lane.
RS_INLINE I16 set_pair(const int16_t* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return (I16)(bits - I32{});
}

// Each lane: the sum of the products of its two 16-bit integers. Exact unless all four are -2^15.
RS_INLINE I32 multiply_pairs(I16 a, I16 b) {
#if RS_WIDTH == 8 && defined(__AVX2__)
  return (I32)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif RS_WIDTH == 16 && defined(__AVX512BW__)
  return (I32)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
  const I32 x = (I32)a, y = (I32)b;
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}
// Whole numbers from -32768 to 32767.
RS_INLINE void store_i16(int16_t* p, I32 v) {
  const HalfI16 half = __builtin_convertvector(v, HalfI16);
  std::memcpy(p, &half, sizeof half);
}
RS_INLINE F32 to_float(I32 v) { return __builtin_convertvector(v, F32); }

// bfloat16 is the upper half of a float32, so that widening is exact.
RS_INLINE F32 widen_bf16(U16 half) { return (F32)(widen(half) << 16); }
RS_INLINE U16 narrow_bf16(F32 v) {  // to the nearest, ties to even; NaN stays NaN
  const U32 bits = (U32)v;
  const U32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U32 quiet_nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector((v == v) ? rounded : quiet_nan, U16);
}
RS_INLINE F32 load_bf16(const uint16_t* p) {
  U16 half;
  std::memcpy(&half, p, sizeof half);
  return widen_bf16(half);
}
RS_INLINE void store_bf16(uint16_t* p, F32 v) {
  const U16 half = narrow_bf16(v);
  std::memcpy(p, &half, sizeof half);
}
RS_INLINE F32 load_n_bf16(const uint16_t* p, int64_t n) {
  if (n == W) return load_bf16(p);
  uint16_t lanes[W] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
RS_INLINE void store_n_bf16(uint16_t* p, F32 v, int64_t n) {
  if (n == W) return store_bf16(p, v);
  uint16_t lanes[W];
  store_bf16(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// a * b + c. To be compiled with -ffp-contract=fast, so that it is rounded once where the machine
// can; the compiler then does it everywhere or nowhere in a variant.
RS_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return a * b + c;
}

RS_INLINE F32 select(I32 mask, F32 yes, F32 no) { return mask ? yes : no; }

// The larger of each lane. Where a is NaN the result is b: ask for NaN before.
RS_INLINE F32 max(F32 a, F32 b) {
  return (a > b) ? a : b;
}

RS_INLINE float reduce_max(F32 v) {
  alignas(sizeof(F32)) float lanes[W];
  store(lanes, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}
// The sum of the lanes, always as the same tree: upper half onto lower half.
RS_INLINE float reduce_add(F32 v) {
  alignas(sizeof(F32)) float lanes[W];
  store(lanes, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

RS_INLINE int64_t at_most_w(int64_t left) { return left < W ? left : W; }

// The largest of all |x|, NaN if one of them is not finite: what a scale is made of.
RS_INLINE float find_reach(const float* x, int64_t size) {
  F32 largest = zero(), faults = zero();
  for (int64_t i = 0; i < size; i += W) {
    const F32 values = load_n(x + i, at_most_w(size - i));
    largest = max(max(values, -values), largest);
    faults += values - values;  // NaN for NaN and for infinities, else 0
  }
  return reduce_max(largest) + reduce_add(faults);
}

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers in the low bits

// x = n ln 2 + r, |r| <= ln 2 / 2: returns e^r, by a polynomial, and n + kRound in `shifted`.
RS_INLINE F32 exp_of_rest(F32 x, F32& shifted) {
  const F32 round = set1(kRound);
  shifted = fma(x, set1(1.44269504f), round);
  const F32 n = shifted - round;
  F32 r = fma(n, set1(-0.693145752f), x);
  r = fma(n, set1(-1.42860677e-6f), r);
  F32 p = set1(1.98756912e-4f);
  p = fma(p, r, set1(1.39819994e-3f));
  p = fma(p, r, set1(8.33345205e-3f));
  p = fma(p, r, set1(4.16657962e-2f));
  p = fma(p, r, set1(1.66666657e-1f));
  p = fma(p, r, set1(5.00000000e-1f));
  return fma(p, r * r, r + 1.0f);
}

// e^x to about 1 ulp; exp(-inf) = 0, exp(inf) = inf, NaN stays NaN, results below the normal
// range are rounded like any other.
RS_INLINE F32 exp(F32 x) {
  const F32 floor = set1(-104.0f), ceiling = set1(89.0f), round = set1(kRound);
  x = select(x < floor, floor, x);
  x = select(x > ceiling, ceiling, x);
  F32 shifted;
  const F32 p = exp_of_rest(x, shifted);
  // 2^n in two factors: n reaches from -150 to 128, one exponent only from -126 to 127.
  const I32 whole = (I32)((U32)shifted - (U32)round);
  const I32 half = whole >> 1;
  const F32 low = (F32)((U32)(half + 127) << 23);
  const F32 high = (F32)((U32)(whole - half + 127) << 23);
  return p * low * high;
}

}  // namespace rs::RS_VARIANT
