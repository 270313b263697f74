"""Row operations, which reduce the last axis of their operands.

`softmax`, `logsumexp`, `rms_norm` and `masked_kernels` have operations in plain JAX with their derivatives;
`cross_entropy_reference` and `cross_entropy_kernels` have those of the losses. `loss_arguments` checks the
losses' arguments, `loss_measures` computes losses from reduced rows, `loss_labels` reads elements at labels.
Public functions are in `softmax`, `logsumexp`, `rms_norm`, `masked`, `cross_entropy`, `kl_divergence` and
`plan`. All other modules serve every operation: `contract` reads its table from `ffi/rows/operations.h`,
`primitive` makes it a JAX primitive.
"""
