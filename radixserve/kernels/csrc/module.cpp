// The Python module radixserve.kernels._native. std::invalid_argument becomes ValueError,
// std::out_of_range IndexError, std::bad_alloc MemoryError.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include "bindings.h"
#include "draw.h"
#include "machine_limits.h"
#include "ops.h"
#include "packed_linear.h"
#include "threads.h"
#include "variants.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace rs {
namespace {

using NoGil = nb::call_guard<nb::gil_scoped_release>;

DType dtype_of(const nb::dlpack::dtype& dtype) {
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (dtype.lanes == 1) {
    if (code == nb::dlpack::dtype_code::Float && dtype.bits == 32) return DType::float32;
    if (code == nb::dlpack::dtype_code::Float && dtype.bits == 64) return DType::float64;
    if (code == nb::dlpack::dtype_code::Bfloat && dtype.bits == 16) return DType::bfloat16;
    if (code == nb::dlpack::dtype_code::Int && dtype.bits == 8) return DType::int8;
    if (code == nb::dlpack::dtype_code::Int && dtype.bits == 32) return DType::int32;
    if (code == nb::dlpack::dtype_code::Int && dtype.bits == 64) return DType::int64;
    if (code == nb::dlpack::dtype_code::UInt && dtype.bits == 8) return DType::uint8;
  }
  throw std::invalid_argument(
      "View: the array must be float32, float64, bfloat16, int8, uint8, int32 or int64");
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8})
    if (name == name_of(dtype)) return dtype;
  throw std::invalid_argument("PackedLinear: dtype must be float32, bfloat16 or int8, got " + name);
}

template <class Values>
nb::tuple as_tuple(const Values& values, int count) {
  nb::list list;
  for (int i = 0; i < count; ++i) list.append(values[i]);
  return nb::tuple(list);
}

std::shared_ptr<PackedLinear> pack(const Array& weight, const std::string& dtype,
                                   const Array* bias) {
  const nb::gil_scoped_release no_gil;
  return std::make_shared<PackedLinear>(weight.view, dtype_named(dtype),
                                        bias == nullptr ? nullptr : &bias->view);
}

void bind_machine(nb::module_& m) {
  m.def("variants", variant_names);
  m.def("variant", [] { return variant().name; });
  m.def("set_variant", set_variant, "name"_a);
  m.def("num_threads", num_threads);
  m.def("set_num_threads", set_num_threads, "n"_a, NoGil());
  m.def("measure_read_bandwidth", measure_read_bandwidth, "num_bytes"_a, NoGil());
  m.def("measure_peak_flops", measure_peak_flops, NoGil());
  m.def(
      "draw",
      [](const Array& logits, int64_t rows, int64_t limit, const Array& temperature,
         const Array& min_p, const Array& top_k, const Array& top_p, const Array& u,
         const Array& out_ids) {
        draw(logits.view, rows, limit,
             {.temperature = temperature.view,
              .min_p = min_p.view,
              .top_k = top_k.view,
              .top_p = top_p.view,
              .u = u.view},
             out_ids.view);
      },
      "logits"_a, "rows"_a, "limit"_a, "temperature"_a, "min_p"_a, "top_k"_a, "top_p"_a, "u"_a,
      "out_ids"_a, NoGil());
}

void bind_arrays(nb::module_& m) {
  nb::class_<Array>(m, "View")
      .def(nb::init<nb::ndarray<nb::device::cpu>>(), "array"_a)
      .def_prop_ro("shape", [](const Array& a) { return as_tuple(a.view.shape, a.view.rank); })
      .def_prop_ro("strides", [](const Array& a) { return as_tuple(a.view.strides, a.view.rank); })
      .def_prop_ro("dtype", [](const Array& a) { return name_of(a.view.dtype); })
      .def_prop_ro("pointer",
                   [](const Array& a) { return reinterpret_cast<uintptr_t>(a.view.data); })
      .def("__repr__", [](const Array& a) { return "View(" + a.view.describe() + ")"; });

  nb::class_<PackedLinear>(m, "PackedLinear")
      .def(nb::new_(&pack), "weight"_a, "dtype"_a, "bias"_a.none() = nb::none())
      .def_prop_ro("shape",
                   [](const PackedLinear& w) {
                     return nb::make_tuple(w.num_outputs(), w.num_inputs());
                   })
      .def_prop_ro("dtype", [](const PackedLinear& w) { return name_of(w.dtype()); })
      .def_prop_ro("num_bytes", &PackedLinear::num_bytes);
}

void bind_program(nb::class_<Program>& program) {
  program.def(nb::init<>())
      .def(
          "embed",
          [](Program& self, const Array& table, const Array& ids, const Array& out) {
            add_embed(self, table.view, ids.view, out.view);
          },
          "table"_a, "ids"_a, "out"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>())
      .def(
          "rms_norm",
          [](Program& self, const Array& x, const Array& weight, float eps, const Array& out) {
            add_rms_norm(self, x.view, weight.view, eps, out.view);
          },
          "x"_a, "weight"_a, "eps"_a, "out"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 5>())
      .def(
          "linear",
          [](Program& self, const Array& x, std::shared_ptr<PackedLinear> packed,
             const Array& out, bool add) {
            add_linear(self, x.view, std::move(packed), out.view, add);
          },
          "x"_a, "packed"_a, "out"_a, "add"_a = false, nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 4>())
      .def(
          "linear_swiglu",
          [](Program& self, const Array& x, std::shared_ptr<PackedLinear> packed,
             const Array& out) { add_linear_swiglu(self, x.view, std::move(packed), out.view); },
          "x"_a, "packed"_a, "out"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def(
          "rope",
          [](Program& self, const Array& x, const Array& positions, const Array& cos,
             const Array& sin) { add_rope(self, x.view, positions.view, cos.view, sin.view); },
          "x"_a, "positions"_a, "cos"_a, "sin"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
      .def(
          "write_kv",
          [](Program& self, const Array& k, const Array& v, const Array& slots,
             const Array& k_pool, const Array& v_pool, const Array* k_scale,
             const Array* v_scale) {
            add_write_kv(self, k.view, v.view, slots.view,
                         pool_of(k_pool, v_pool, k_scale, v_scale));
          },
          "k"_a, "v"_a, "slots"_a, "k_pool"_a, "v_pool"_a, "k_scale"_a.none() = nb::none(),
          "v_scale"_a.none() = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(),
          nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
      .def_prop_ro("capacity", &Program::capacity)
      .def("__len__", &Program::size)
      .def("seconds",
           [](const Program& self) {
             nb::dict told;
             for (const auto& [name, seconds] : self.seconds()) told[name.c_str()] = seconds;
             return told;
           })
      .def("run", &Program::run, "rows"_a, NoGil());
}

}  // namespace

Array::Array(nb::ndarray<nb::device::cpu> array) : owner(std::move(array)) {
  view.rank = static_cast<int>(owner.ndim());
  if (view.rank < 1 || view.rank > 4)
    throw std::invalid_argument("View: the array must have 1 to 4 dimensions, got " +
                                std::to_string(view.rank));
  view.dtype = dtype_of(owner.dtype());
  view.data = owner.data();
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = static_cast<int64_t>(owner.shape(d));
    view.strides[d] = view.shape[d] > 1 ? owner.stride(d) : 1;
    if (view.strides[d] < 1)
      throw std::invalid_argument("View: rows must be at different, ascending addresses");
  }
  // Of four dimensions are only the pools: their layout is for those to judge who read them.
  if (view.rank < 4 && view.strides[view.rank - 1] != 1)
    throw std::invalid_argument("View: the innermost dimension must be contiguous");
}

}  // namespace rs

NB_MODULE(_native, m) {
  // What lives as long as the process is no leak, and users cannot do anything about it.
  nb::set_leak_warnings(false);
  using namespace rs;
  bind_machine(m);
  bind_arrays(m);
  nb::class_<Program> program(m, "Program");
  bind_program(program);
  bind_attention(m, program);
}
