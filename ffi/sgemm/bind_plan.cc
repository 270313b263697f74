// Binds SgemmPlan as a Python class, and the canonical form of a product for its tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "core/bind_value.h"
#include "sgemm/plan.h"

namespace nb = nanobind;

namespace jaxkernels {
namespace {

SgemmProblem Problem(const std::vector<int64_t>& a_shape, const std::vector<int64_t>& b_shape,
                     bool trans_a, bool trans_b) {
  const SgemmProblemResult described = MakeSgemmProblem(a_shape, b_shape, trans_a, trans_b);
  if (!described.error.empty()) throw nb::value_error(described.error.c_str());
  return WithTallRows(described.problem);
}

nb::tuple ProblemFields(const std::vector<int64_t>& a_shape, const std::vector<int64_t>& b_shape,
                        bool trans_a, bool trans_b) {
  const SgemmProblem problem = Problem(a_shape, b_shape, trans_a, trans_b);
  nb::list batch;
  for (int i = 0; i < problem.batch.dims; ++i) {
    const BatchDim& dim = problem.batch.dim[i];
    batch.append(nb::make_tuple(dim.size, dim.stride_a, dim.stride_b));
  }
  return nb::make_tuple(problem.m, problem.n, problem.k, batch);
}

SgemmPlan Plan(const std::vector<int64_t>& a_shape, const std::vector<int64_t>& b_shape,
               bool trans_a, bool trans_b, const DeviceLimits& limits,
               const std::string& algorithm_name, int split_k, bool for_batch, bool aligned_a,
               bool aligned_b, bool aligned_c) {
  const auto algorithm = FromName<Algorithm>(algorithm_name, "algorithm");
  SgemmProblem problem = Problem(a_shape, b_shape, trans_a, trans_b);
  problem.for_batch = for_batch;
  problem = WithPadding(problem, limits, algorithm);
  problem.aligned_a = aligned_a;
  problem.aligned_b = aligned_b;
  problem.aligned_c = aligned_c;
  const SgemmPlanResult planned = PlanSgemm(problem, limits, algorithm, split_k);
  if (!planned.error.empty()) throw nb::value_error(planned.error.c_str());
  return planned.plan;
}

nb::list Tiles() {
  nb::list tiles;
  for (const PipelinedTile& tile : kPipelinedTiles) {
    tiles.append(nb::make_tuple(tile.block_m, tile.block_n, tile.slices));
  }
  return tiles;
}

std::vector<std::string> Algorithms() { return {kAlgorithmNames, std::end(kAlgorithmNames)}; }

}  // namespace

void BindSgemmPlan(nb::module_& module) {
  BindValue<SgemmPlan>(module, "How a matrix product is launched on a GPU.");
  module.def("sgemm_algorithms", &Algorithms,
             "The rungs of the ladder by name, after \"auto\", which lets the plan choose.");
  module.def("sgemm_tiles", &Tiles,
             "(block_m, block_n, slices) of each tile of the pipelined kernel, by SgemmPlan.tile.");
  module.attr("MAX_BATCH_DIMS") = kMaxBatchDims;
  module.def("sgemm_problem", &ProblemFields, nb::arg("a_shape"), nb::arg("b_shape"),
             nb::arg("trans_a"), nb::arg("trans_b"),
             "(m, n, k, [(size, stride of a, stride of b) of a batch dimension, outermost first]): "
             "the canonical form of a product; raises ValueError where there is none.");
  module.def("plan_sgemm", &Plan, nb::arg("a_shape"), nb::arg("b_shape"), nb::arg("trans_a"),
             nb::arg("trans_b"), nb::arg("limits"), nb::arg("algorithm") = "auto",
             nb::arg("split_k") = 0, nb::arg("for_batch") = false, nb::arg("aligned_a") = true,
             nb::arg("aligned_b") = true, nb::arg("aligned_c") = true,
             "The plan of a matrix product of operands of these shapes; raises ValueError where "
             "there is none.");
}

}  // namespace jaxkernels
