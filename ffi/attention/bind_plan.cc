// Binds the plan of float32 flash attention as a Python class.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "attention/plan.h"
#include "core/bind_value.h"

namespace nb = nanobind;

namespace jaxkernels {
namespace {

AttentionPlan Plan(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t key_heads,
                   int64_t depth, int64_t value_depth, const DeviceLimits& limits, bool backward) {
  const AttentionPlanResult planned =
      PlanAttention({batch, queries, keys, heads, key_heads, depth, value_depth}, limits, backward);
  if (!planned.error.empty()) throw nb::value_error(planned.error.c_str());
  return planned.plan;
}

}  // namespace

void BindAttentionPlan(nb::module_& module) {
  BindValue<AttentionPlan>(module, "How float32 flash attention is launched.");
  module.def("plan_attention_kernel", &Plan, nb::arg("batch"), nb::arg("queries"), nb::arg("keys"),
             nb::arg("heads"), nb::arg("key_heads"), nb::arg("depth"), nb::arg("value_depth"),
             nb::arg("limits"), nb::arg("backward") = false,
             "The plan; raises ValueError where there is none.");
}

}  // namespace jaxkernels
