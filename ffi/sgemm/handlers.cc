// The FFI handler of the matrix product on CUDA.
//
// Owns: the parser of a call with its checks, and the path to a plan and a launch. Must not know:
// how a plan is chosen, how a kernel works. The handler never allocates or synchronises, so that
// CUDA graphs can capture it. Split-k scratch is a second result, which XLA allocates.
#include <cuda_runtime_api.h>

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

bool IsAligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// SgemmCall is a parsed call. ReadCall sets the pointers of `args`, alpha and beta; Run sets the
// rest.
struct SgemmCall {
  SgemmProblem problem;
  Algorithm algorithm;
  int split_k;
  int64_t scratch_elements;
  SgemmArgs args;
};

// ReadProblem describes the product of operands with padded rows, and finds the result's shape.
ffi::Error ReadProblem(std::vector<int64_t> a_shape, std::vector<int64_t> b_shape, bool trans_a,
                       bool trans_b, int64_t pad_a, int64_t pad_b, SgemmProblem* problem,
                       std::vector<int64_t>* shape) {
  if (a_shape.empty() || b_shape.empty()) return Explain("operands need equal ranks of at least 2");
  if (pad_a < 0 || pad_a > a_shape.back() || pad_b < 0 || pad_b > b_shape.back()) {
    return Explain("padding of " + std::to_string(pad_a) + " and " + std::to_string(pad_b) +
                   " elements is not part of the operands' rows");
  }
  a_shape.back() -= pad_a;
  b_shape.back() -= pad_b;
  const SgemmProblemResult described = MakeSgemmProblem(a_shape, b_shape, trans_a, trans_b);
  if (!described.error.empty()) return Explain(described.error);
  *shape = a_shape;
  const std::size_t rank = a_shape.size();
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    if (a_shape[i] == 1) (*shape)[i] = b_shape[i];
  }
  (*shape)[rank - 2] = described.problem.m;
  (*shape)[rank - 1] = described.problem.n;
  *problem = WithTallRows(described.problem);
  problem->pad_a = static_cast<int>(pad_a);
  problem->pad_b = static_cast<int>(pad_b);
  return ffi::Error::Success();
}

ffi::Error ReadCall(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b,
                    const ffi::RemainingArgs& rest, ffi::Result<ffi::AnyBuffer> out,
                    ffi::Result<ffi::AnyBuffer> scratch, bool trans_a, bool trans_b, float alpha,
                    float beta, std::string_view algorithm, bool for_batch, int64_t split_k,
                    int64_t pad_a, int64_t pad_b, SgemmCall* call) {
  std::vector<NamedBuffer> buffers = {
      {"a", a}, {"b", b}, {"the scratch", *scratch}, {"the result", *out}};
  const std::size_t with_result_shape = buffers.size() - 1;  // the result, and c if there is one
  if (rest.size() > 1) return Explain("more than three operands");
  if (rest.size() == 1) {
    const ffi::ErrorOr<ffi::AnyBuffer> c = rest.get<ffi::AnyBuffer>(0);
    if (!c) return c.error();
    buffers.push_back({"c", *c});
    call->args.c = static_cast<const float*>(c->untyped_data());
  } else if (beta != 0.0f) {
    return Explain("beta is not zero, but there is no c");
  }
  for (const NamedBuffer& buffer : buffers) {
    const ffi::DataType type = buffer.buffer.element_type();
    if (type == ffi::DataType::F32) continue;
    return MismatchError("sgemm", buffer.name, "dtype", "float32", DTypeName(type));
  }
  SgemmProblem& problem = call->problem;
  std::vector<int64_t> shape;
  if (ffi::Error error =
          ReadProblem(ShapeOf(a), ShapeOf(b), trans_a, trans_b, pad_a, pad_b, &problem, &shape);
      error.failure()) {
    return error;
  }
  for (std::size_t i = with_result_shape; i < buffers.size(); ++i) {
    const std::vector<int64_t> got = ShapeOf(buffers[i].buffer);
    if (got == shape) continue;
    return MismatchError("sgemm", buffers[i].name, "shape", ShapeText(shape), ShapeText(got));
  }
  if (!ParseName(algorithm, &call->algorithm)) {
    return Explain("unknown algorithm '" + std::string(algorithm) + "'");
  }
  // Only a call from outside this package names no rung. It has no scratch for `tensor`.
  if (call->algorithm == Algorithm::kAuto) call->algorithm = Algorithm::kPipelined;
  call->split_k = static_cast<int>(split_k);
  call->scratch_elements = static_cast<int64_t>(scratch->element_count());
  SgemmArgs& args = call->args;
  args.a = static_cast<const float*>(a.untyped_data());
  args.b = static_cast<const float*>(b.untyped_data());
  args.out = static_cast<float*>(out->untyped_data());
  args.partial = static_cast<float*>(scratch->untyped_data());
  args.alpha = alpha;
  args.beta = beta;
  problem.for_batch = for_batch;
  problem.adds_c = beta != 0.0f;
  problem.aligned_a = IsAligned(args.a);
  problem.aligned_b = IsAligned(args.b);
  problem.aligned_c = IsAligned(args.c) && IsAligned(args.out) && IsAligned(args.partial);
  return ffi::Error::Success();
}

ffi::Error Run(cudaStream_t stream, int32_t ordinal, const SgemmCall& call) {
  const DeviceLimitsResult found = LimitsOfDevice(ordinal);
  if (found.limits == nullptr) {
    return ffi::Error(ffi::ErrorCode::kUnavailable, "sgemm: " + found.error);
  }
  const SgemmProblem& problem = call.problem;
  const SgemmPlanResult planned = PlanSgemm(problem, *found.limits, call.algorithm, call.split_k);
  if (!planned.error.empty()) return Explain(planned.error);
  const SgemmPlan& plan = planned.plan;
  SgemmArgs args = call.args;
  if (plan.algorithm == Algorithm::kTensor && !IsAligned(args.partial)) {
    return Explain("the scratch does not begin at a multiple of 16 bytes");
  }
  if (call.scratch_elements < plan.partial_elements) {
    return Explain("the scratch has " + std::to_string(call.scratch_elements) +
                   " elements, the plan needs " + std::to_string(plan.partial_elements));
  }
  args.m = problem.m;
  args.n = problem.n;
  args.k = problem.k;
  args.pitch_a = problem.PitchA();
  args.pitch_b = problem.PitchB();
  args.matrices_a = problem.batch.MatricesOf(&BatchDim::stride_a);
  args.matrices_b = problem.batch.MatricesOf(&BatchDim::stride_b);
  args.batch = problem.batch;
  args.aligned_a = plan.pack_a > 1;
  args.aligned_b = plan.pack_b > 1;
  args.aligned_c = plan.pack_c > 1;
  args.a_k_major = !problem.trans_a;
  args.b_k_major = problem.trans_b;
  const cudaError_t status = LaunchSgemm(plan, planned.repairs, args, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal("sgemm: the launch of " + TextOf(plan) +
                              " failed: " + cudaGetErrorString(status));
}

// `arguments` are the operands, results and attributes bound below, in the order of ReadCall's
// parameters.
constexpr auto kSgemm = [](cudaStream_t stream, int32_t ordinal, auto... arguments) {
  SgemmCall call{};
  ffi::Error error = ReadCall(arguments..., &call);
  return error.failure() ? error : Run(stream, ordinal, call);
};

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernelsSgemmCuda, kSgemm,
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
