// AttentionPlan and Program.attention in Python.
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <mutex>
#include <utility>

#include "attention.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace rs {
namespace {

using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<int32_t> copy(const Indices& indices) {
  return {indices.data(), indices.data() + indices.shape(0)};
}

void set_plan(AttentionPlan& self, const Indices& qo_indptr, const Indices& kv_indptr,
              const Indices& kv_indices, const Indices& kv_lens, int32_t block_size,
              int32_t num_qo_heads, int32_t num_kv_heads) {
  AttentionBatch batch{.qo_indptr = copy(qo_indptr),
                       .kv_indptr = copy(kv_indptr),
                       .kv_indices = copy(kv_indices),
                       .kv_lens = copy(kv_lens),
                       .block_size = block_size,
                       .num_qo_heads = num_qo_heads,
                       .num_kv_heads = num_kv_heads};
  const nb::gil_scoped_release no_gil;
  self.set(std::move(batch));
}

// A property of the plan, which another thread may be setting.
template <int64_t (AttentionPlan::*property)() const>
int64_t read(AttentionPlan& self) {
  const nb::gil_scoped_release no_gil;
  const std::lock_guard lock(self.in_use());
  return (self.*property)();
}

}  // namespace

void bind_attention(nb::module_& m, nb::class_<Program>& program) {
  nb::class_<AttentionPlan>(m, "AttentionPlan")
      .def(nb::new_([](bool share) { return std::make_shared<AttentionPlan>(share); }),
           nb::kw_only(), "share"_a = true)
      .def("set", set_plan, "qo_indptr"_a.noconvert(), "kv_indptr"_a.noconvert(),
           "kv_indices"_a.noconvert(), "kv_lens"_a.noconvert(), "block_size"_a, "num_qo_heads"_a,
           "num_kv_heads"_a)
      .def_prop_ro("num_rows", read<&AttentionPlan::num_rows>)
      .def_prop_ro("num_shared_chunks", read<&AttentionPlan::num_shared_chunks>)
      .def_prop_ro("num_stored_items", read<&AttentionPlan::num_stored_items>)
      .def_prop_ro("num_walks", read<&AttentionPlan::num_walks>);

  program.def(
      "attention",
      [](Program& self, const Array& q, const Array& k_pool, const Array& v_pool,
         std::shared_ptr<AttentionPlan> plan, const Array& out, float scale, const Array* k_scale,
         const Array* v_scale) {
        add_attention(self, q.view, pool_of(k_pool, v_pool, k_scale, v_scale), std::move(plan),
                      out.view, scale);
      },
      "q"_a, "k_pool"_a, "v_pool"_a, "plan"_a, "out"_a, "scale"_a, "k_scale"_a.none() = nb::none(),
      "v_scale"_a.none() = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
      nb::keep_alive<1, 4>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 8>(),
      nb::keep_alive<1, 9>());
}

}  // namespace rs
