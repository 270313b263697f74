"""Row operations, which reduce the last axis of their operands.

`softmax`, `logsumexp`, `rms_norm` and `masked_kernels` have operations in plain JAX with their derivatives;
`cross_entropy_reference` and `cross_entropy_kernels` have those of the losses. Public functions are in the
first three, and in `masked`, `cross_entropy` and `plan`. All other modules serve every operation:
`contract` reads its table from `ffi/rows/operations.h`, `primitive` makes it a JAX primitive.
"""
