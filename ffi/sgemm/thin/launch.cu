#include "sgemm/launch.h"
#include "sgemm/thin/across_k.cuh"
#include "sgemm/thin/along_k.cuh"
#include "sgemm/thin/start.h"

namespace jaxkernels {
namespace {

template <int kFew>
const void* KernelOfFew(ThinForm form, bool in_packs) {
  if (form == ThinForm::kAlongK) {
    return in_packs ? reinterpret_cast<const void*>(SumAlongK<kFew, 4>)
                    : reinterpret_cast<const void*>(SumAlongK<kFew, 1>);
  }
  return in_packs ? reinterpret_cast<const void*>(SumAcrossK<kFew, 4>)
                  : reinterpret_cast<const void*>(SumAcrossK<kFew, 1>);
}

const void* FindKernel(ThinForm form, int few, bool in_packs) {
  return few == 1 ? KernelOfFew<1>(form, in_packs) : KernelOfFew<4>(form, in_packs);
}

}  // namespace

cudaError_t LaunchThin(const SgemmPlan& plan, const SgemmArgs& product, bool a_along_k,
                       bool b_along_k, cudaStream_t stream) {
  if (plan.thin == ThinForm::kShallow) {
    return LaunchShallow(plan, product, a_along_k, b_along_k, stream);
  }
  ThinArgs args{};
  args.product = product;
  args.many_is_a = plan.many_is_a;
  args.few_along_k = plan.many_is_a ? b_along_k : a_along_k;
  args.few = static_cast<int>(plan.many_is_a ? product.n : product.m);
  args.many = plan.many_is_a ? product.m : product.n;
  const int lines_of_block = plan.many_is_a ? plan.block_m : plan.block_n;
  args.lanes = lines_of_block / kAcrossLines;
  args.turns = lines_of_block / kAlongLinesOfTurn;
  args.k_per_block = plan.k_per_split / plan.cluster_blocks;
  args.groups = static_cast<unsigned>(plan.tiles_m * plan.tiles_n);
  args.parts = static_cast<unsigned>(plan.cluster_blocks * plan.split_k);
  args.members = 1;
  for (int i = 0; i < product.batch_dims; ++i) args.members *= product.batch[i].size;
  const int few = plan.many_is_a ? plan.block_n : plan.block_m;
  const int pack = plan.many_is_a ? plan.pack_a : plan.pack_b;
  return StartThin(plan, FindKernel(plan.thin, few, pack > 1), &args, stream);
}

}  // namespace jaxkernels
