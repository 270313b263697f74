// Python bindings of RowPlan, DeviceLimits, the table of operations and the known devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "core/bind_value.h"
#include "rows/masked_rows.h"
#include "rows/plan.h"

namespace nb = nanobind;

namespace jaxkernels {
namespace {

RowPlan Plan(int64_t rows, int64_t cols, const std::string& dtype, const std::string& operation,
             const DeviceLimits& limits, const std::string& tier, const std::string& part,
             int offset, bool shifted) {
  if (rows < 0 || cols < 1) {
    throw nb::value_error(("rows must be at least 0 and cols at least 1, got " +
                           std::to_string(rows) + " and " + std::to_string(cols))
                              .c_str());
  }
  RowProblem problem;
  problem.rows = rows;
  problem.cols = cols;
  problem.dtype = FromName<DType>(dtype, "dtype");
  problem.operation = FromName<Operation>(operation, "operation");
  problem.part = FromName<Part>(part, "part");
  problem.tier = FromName<Tier>(tier, "tier");
  const int pack = PackOf(problem.dtype);
  if (offset < 0 || offset >= pack) {
    throw nb::value_error(("offset must be at least 0 and below " + std::to_string(pack) +
                           ", got " + std::to_string(offset))
                              .c_str());
  }
  problem.offset = offset;
  problem.shifted = shifted;
  const RowPlanResult planned = PlanRows(problem, limits);
  if (!planned.error.empty()) throw nb::value_error(planned.error.c_str());
  return planned.plan;
}

nb::tuple RowsOf(const RowPlan& plan, int64_t worker, int64_t rows) {
  if (worker < 0 || worker >= plan.batches.CountWorkers(rows)) {
    throw nb::index_error(("the plan has no worker " + std::to_string(worker)).c_str());
  }
  const RowBatches::Rows taken = plan.batches.RowsOf(worker, rows);
  return nb::make_tuple(taken.first, taken.end, taken.step);
}

nb::list Specs(const OperandSpecs& specs) {
  nb::list list;
  for (const OperandSpec& spec : specs) {
    const std::string_view role = NameOf(spec.role);
    list.append(nb::make_tuple(nb::str(spec.name.data(), spec.name.size()),
                               nb::str(role.data(), role.size()), spec.count));
  }
  return list;
}

nb::dict RowOperations() {
  nb::dict operations;
  for (const OperationTraits& traits : kOperations) {
    nb::dict row;
    row["operands"] = Specs(traits.operands);
    row["results"] = Specs(traits.results);
    row["finds_max"] = traits.finds_max;
    row["hides"] = traits.hides;
    row["sums"] = traits.sums;
    row["counts_max"] = traits.counts_max;
    row["x_if_half"] = traits.x_if_half;
    row["averages"] = traits.averages;
    operations[nb::str(traits.name.data(), traits.name.size())] = row;
  }
  return operations;
}

nb::dict NamedDevices() {
  nb::dict devices;
  for (const DeviceLimits& limits : kNamedDevices) devices[limits.name.c_str()] = limits;
  return devices;
}

}  // namespace

void BindRowPlan(nb::module_& module) {
  BindValue<DeviceLimits>(module, "The properties of a GPU that plans depend on.")
      .def(
          "__init__",
          [](DeviceLimits* self, const std::string& name, int sm_count, int smem_per_block,
             int smem_per_sm, int threads_per_sm, int blocks_per_sm, int registers_per_sm,
             int compute_capability, int cluster_blocks, int memory_gb_per_s, int clock_mhz,
             std::optional<int> compiled_for, std::optional<bool> has_wgmma) {
            if (sm_count < 1) throw nb::value_error("sm_count must be at least 1");
            if (memory_gb_per_s < 1 || clock_mhz < 1) {
              throw nb::value_error("memory_gb_per_s and clock_mhz must be at least 1");
            }
            const int code = compiled_for.value_or(compute_capability);
            new (self)
                DeviceLimits{name,           sm_count,        smem_per_block,   smem_per_sm,
                             threads_per_sm, blocks_per_sm,   registers_per_sm, compute_capability,
                             cluster_blocks, memory_gb_per_s, clock_mhz,        code};
            if (has_wgmma) self->has_wgmma = *has_wgmma;
          },
          nb::kw_only(), nb::arg("name"), nb::arg("sm_count"), nb::arg("smem_per_block"),
          nb::arg("smem_per_sm"), nb::arg("threads_per_sm"), nb::arg("blocks_per_sm"),
          nb::arg("registers_per_sm"), nb::arg("compute_capability"), nb::arg("cluster_blocks") = 1,
          nb::arg("memory_gb_per_s") = kFittedMemoryGbPerS, nb::arg("clock_mhz") = kFittedClockMhz,
          nb::arg("compiled_for") = nb::none(), nb::arg("has_wgmma") = nb::none());

  BindValue<RowPlan>(module, "How a row operation is launched on a GPU.")
      .def("rows_of", &RowsOf, nb::arg("worker"), nb::arg("rows"),
           "The rows (first, end, step) of a worker, which is a block or cluster, if the call has "
           "`rows` rows; tiers 'block_smem' and 'cluster' only.");

  module.attr("UNBOUNDED") = MaskedRows::kUnbounded;
  module.def("row_operations", &RowOperations, "The contract of each row operation, by its name.");
  module.def("named_devices", &NamedDevices, "Limits of well-known GPUs, by name.");
  module.def("plan_softmax", &Plan, nb::arg("rows"), nb::arg("cols"), nb::arg("dtype"),
             nb::arg("operation"), nb::arg("limits"), nb::arg("tier"), nb::arg("part") = "whole",
             nb::arg("offset") = 0, nb::arg("shifted") = false,
             "The plan of a row operation; raises ValueError where the tier cannot serve it.");
}

}  // namespace jaxkernels
