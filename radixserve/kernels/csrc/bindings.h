// What the Python bindings share. A source X_module.cpp binds X and is called from module.cpp.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "program.h"
#include "view.h"

namespace rs {

// `View` in Python: an array of somebody else's, which it keeps alive. A method that records an op
// of a Program keeps its arrays alive by nb::keep_alive<1, argument>().
struct Array {
  explicit Array(nanobind::ndarray<nanobind::device::cpu> array);

  nanobind::ndarray<nanobind::device::cpu> owner;
  View view;
};

void bind_attention(nanobind::module_& m, nanobind::class_<Program>& program);

}  // namespace rs
