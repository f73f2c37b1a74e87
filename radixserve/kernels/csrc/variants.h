// The instruction sets that the kernels are compiled for, and which one is in use.
//
// A kernel source X_kernels.cpp is compiled once per variant and defines, in namespace
// rs::RS_VARIANT, one table `const XKernels x_kernels` of plain function pointers, whose type
// stands in X.h. To add a table: a member of `Variant` here, a line of RS_DECLARE_TABLES and of
// RS_TABLES in variants.cpp.
#pragma once

#include <string>
#include <vector>

namespace rs {

struct MatmulKernels;
struct ElementwiseKernels;
struct AttentionKernels;
struct LimitsKernels;

struct Variant {
  const char* name;
  int width;  // floats a vector
  const MatmulKernels* matmul;
  const ElementwiseKernels* elementwise;
  const AttentionKernels* attention;
  const LimitsKernels* limits;
};

// The one in use; the best that this machine can run unless another was chosen.
const Variant& variant();

// Those that this machine can run, from the plainest to the best.
std::vector<std::string> variant_names();

// Throws std::invalid_argument for a name that is not among them.
void set_variant(const std::string& name);

}  // namespace rs
