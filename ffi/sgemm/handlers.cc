// The FFI handler of the matrix product on CUDA.
//
// Owns: the checks of a call, and its translation from XLA to a launch. Must not know: how a plan
// is chosen, how a kernel works. The handler never allocates or synchronises, so that CUDA graphs
// can capture it. Split-k scratch is a second result, which XLA allocates.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/checks.h"
#include "core/device_query.h"
#include "core/shape_text.h"
#include "sgemm/launch.h"
#include "sgemm/plan.h"
#include "sgemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace jaxkernels {
namespace {

ffi::Error Explain(const std::string& problem) {
  return ffi::Error::InvalidArgument("sgemm: " + problem);
}

ffi::Error Unavailable(const std::string& problem) {
  return ffi::Error(ffi::ErrorCode::kUnavailable, "sgemm: " + problem);
}

std::vector<int64_t> ShapeOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().end()};
}

// Shape of the result of operands that MakeSgemmProblem has accepted.
std::vector<int64_t> ResultShape(const std::vector<int64_t>& a_shape,
                                 const std::vector<int64_t>& b_shape, bool trans_a, bool trans_b) {
  std::vector<int64_t> shape = a_shape;
  const std::size_t rank = a_shape.size();
  for (std::size_t i = 0; i + 2 < rank; ++i) shape[i] = a_shape[i] == 1 ? b_shape[i] : a_shape[i];
  shape[rank - 2] = a_shape[trans_a ? rank - 1 : rank - 2];
  shape[rank - 1] = b_shape[trans_b ? rank - 2 : rank - 1];
  return shape;
}

ffi::Error CheckFloat32(std::string_view name, const ffi::AnyBuffer& buffer) {
  if (buffer.element_type() == ffi::DataType::F32) return ffi::Error::Success();
  return MismatchError("sgemm", name, "dtype", "float32", DTypeName(buffer.element_type()));
}

ffi::Error CheckShape(std::string_view name, const ffi::AnyBuffer& buffer,
                      const std::vector<int64_t>& expected) {
  if (ShapeOf(buffer) == expected) return ffi::Error::Success();
  return MismatchError("sgemm", name, "shape", ShapeText(expected), ShapeText(buffer.dimensions()));
}

bool IsAligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

ffi::Error Sgemm(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer a, ffi::AnyBuffer b,
                 ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> out,
                 ffi::Result<ffi::AnyBuffer> partial, bool trans_a, bool trans_b, float alpha,
                 float beta, std::string_view algorithm_name, bool for_batch, int64_t split_k,
                 int64_t pad_a, int64_t pad_b) {
  if (ffi::Error error = CheckFloat32("a", a); error.failure()) return error;
  if (ffi::Error error = CheckFloat32("b", b); error.failure()) return error;
  if (ffi::Error error = CheckFloat32("the result", *out); error.failure()) return error;
  if (ffi::Error error = CheckFloat32("the scratch", *partial); error.failure()) return error;
  std::vector<int64_t> a_shape = ShapeOf(a), b_shape = ShapeOf(b);
  if (a_shape.empty() || b_shape.empty()) return Explain("operands need one rank of at least 2");
  if (pad_a < 0 || pad_a > a_shape.back() || pad_b < 0 || pad_b > b_shape.back()) {
    return Explain("padding of " + std::to_string(pad_a) + " and " + std::to_string(pad_b) +
                   " elements is not part of the operands' rows");
  }
  a_shape.back() -= pad_a;
  b_shape.back() -= pad_b;
  const SgemmProblemResult made = MakeSgemmProblem(a_shape, b_shape, trans_a, trans_b);
  if (!made.error.empty()) return Explain(made.error);
  const std::vector<int64_t> shape = ResultShape(a_shape, b_shape, trans_a, trans_b);
  if (ffi::Error error = CheckShape("the result", *out, shape); error.failure()) return error;

  const float* c_data = nullptr;
  if (rest.size() > 1) return Explain("more than three operands");
  if (rest.size() == 1) {
    const ffi::ErrorOr<ffi::AnyBuffer> c = rest.get<ffi::AnyBuffer>(0);
    if (!c) return c.error();
    if (ffi::Error error = CheckFloat32("c", *c); error.failure()) return error;
    if (ffi::Error error = CheckShape("c", *c, shape); error.failure()) return error;
    c_data = static_cast<const float*>(c->untyped_data());
  } else if (beta != 0.0f) {
    return Explain("beta is not zero, but there is no c");
  }

  Algorithm algorithm;
  if (!ParseName(algorithm_name, &algorithm)) {
    return Explain("unknown algorithm '" + std::string(algorithm_name) + "'");
  }
  // Only a call from outside this package names no rung. It has no scratch for `tensor`.
  if (algorithm == Algorithm::kAuto) algorithm = Algorithm::kPipelined;
  const DeviceLimitsResult found = LimitsOfDevice(ordinal);
  if (found.limits == nullptr) return Unavailable(found.error);
  SgemmProblem problem = WithTallRows(made.problem);
  problem.for_batch = for_batch;
  problem.adds_c = beta != 0.0f;
  problem.pad_a = static_cast<int>(pad_a);
  problem.pad_b = static_cast<int>(pad_b);
  problem.aligned_a = IsAligned(a.untyped_data());
  problem.aligned_b = IsAligned(b.untyped_data());
  problem.aligned_c =
      IsAligned(c_data) && IsAligned(out->untyped_data()) && IsAligned(partial->untyped_data());
  const SgemmPlanResult planned =
      PlanSgemm(problem, *found.limits, algorithm, static_cast<int>(split_k));
  if (!planned.error.empty()) return Explain(planned.error);
  const SgemmPlan& plan = planned.plan;
  if (plan.algorithm == Algorithm::kTensor && !IsAligned(partial->untyped_data())) {
    return Explain("the scratch does not begin at a multiple of 16 bytes");
  }
  if (static_cast<int64_t>(partial->element_count()) < plan.partial_elements) {
    return Explain("the scratch has " + std::to_string(partial->element_count()) +
                   " elements, the plan needs " + std::to_string(plan.partial_elements));
  }

  SgemmArgs args{};
  args.a = static_cast<const float*>(a.untyped_data());
  args.b = static_cast<const float*>(b.untyped_data());
  args.c = c_data;
  args.out = static_cast<float*>(out->untyped_data());
  args.partial = static_cast<float*>(partial->untyped_data());
  args.m = problem.m;
  args.n = problem.n;
  args.k = problem.k;
  args.pitch_a = problem.PitchA();
  args.pitch_b = problem.PitchB();
  args.members_a = problem.MembersOf(&BatchDim::stride_a);
  args.members_b = problem.MembersOf(&BatchDim::stride_b);
  args.batch_dims = problem.batch_dims;
  std::copy(std::begin(problem.batch), std::end(problem.batch), args.batch);
  args.alpha = alpha;
  args.beta = beta;
  args.aligned_a = plan.pack_a > 1;
  args.aligned_b = plan.pack_b > 1;
  args.aligned_c = plan.pack_c > 1;
  const cudaError_t status = LaunchSgemm(plan, planned.repairs, args, trans_a, trans_b, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal("sgemm: the launch of " + TextOf(plan) +
                              " failed: " + cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsSgemmCuda, Sgemm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("trans_a")
                                  .Attr<bool>("trans_b")
                                  .Attr<float>("alpha")
                                  .Attr<float>("beta")
                                  .Attr<std::string_view>("algorithm")
                                  .Attr<bool>("for_batch")
                                  .Attr<int64_t>("split_k")
                                  .Attr<int64_t>("pad_a")
                                  .Attr<int64_t>("pad_b"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxkernels
