#include "variants.h"

#include <atomic>
#include <stdexcept>

namespace rs {

#define RS_DECLARE_TABLES(name)                        \
  namespace name {                                     \
  extern const MatmulKernels matmul_kernels;           \
  extern const ElementwiseKernels elementwise_kernels; \
  extern const AttentionKernels attention_kernels;     \
  extern const LimitsKernels limits_kernels;           \
  }
#define RS_TABLES(name)                                                       \
  .matmul = &name::matmul_kernels, .elementwise = &name::elementwise_kernels, \
  .attention = &name::attention_kernels, .limits = &name::limits_kernels

RS_DECLARE_TABLES(scalar)
RS_DECLARE_TABLES(wide)
RS_DECLARE_TABLES(avx2)
RS_DECLARE_TABLES(avx512)

namespace {

// The compiler's own check asks the operating system, too, whether it saves the registers.
[[maybe_unused]] bool has_avx2() {
#if defined(RS_HAS_AVX2)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

[[maybe_unused]] bool has_avx512() {
#if defined(RS_HAS_AVX512)
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// From the plainest to the best.
const std::vector<Variant>& runnable() {
  static const std::vector<Variant> found = [] {
    std::vector<Variant> list{{.name = "scalar", .width = 4, RS_TABLES(scalar)}};
#if defined(RS_HAS_WIDE)
    if (has_avx2()) list.push_back({.name = "wide", .width = 16, RS_TABLES(wide)});
#endif
#if defined(RS_HAS_AVX2)
    if (has_avx2()) list.push_back({.name = "avx2", .width = 8, RS_TABLES(avx2)});
#endif
#if defined(RS_HAS_AVX512)
    if (has_avx512()) list.push_back({.name = "avx512", .width = 16, RS_TABLES(avx512)});
#endif
    return list;
  }();
  return found;
}

std::atomic<const Variant*> g_variant{nullptr};

}  // namespace

const Variant& variant() {
  const Variant* const chosen = g_variant.load(std::memory_order_acquire);
  return chosen != nullptr ? *chosen : runnable().back();
}

std::vector<std::string> variant_names() {
  std::vector<std::string> names;
  for (const Variant& each : runnable()) names.emplace_back(each.name);
  return names;
}

void set_variant(const std::string& name) {
  std::string names;
  for (const Variant& each : runnable()) {
    if (name == each.name) {
      g_variant.store(&each, std::memory_order_release);
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("no kernels for '" + name + "'; this machine can run: " + names);
}

}  // namespace rs
