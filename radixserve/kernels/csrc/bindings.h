// What the Python bindings share. A source X_module.cpp binds X and is called from module.cpp.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "kv_pool.h"
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

// The arrays of a pool as Python gives them: scales are None where there are none.
inline KVPool pool_of(const Array& k, const Array& v, const Array* k_scale, const Array* v_scale) {
  return {k.view, v.view, k_scale ? k_scale->view : View{}, v_scale ? v_scale->view : View{}};
}

void bind_attention(nanobind::module_& m, nanobind::class_<Program>& program);

}  // namespace rs
