"""What the arguments of the public functions may be, as types: editors complete them, checkers find misspellings.

Each list of names is written down here once; the checks at run time read it by `typing.get_args`.

Example:
    >>> import typing
    >>> import jaxkernels.typing
    >>> typing.get_args(jaxkernels.typing.Implementation)
    ('ffi', 'xla')
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

# Storage types that have kernels.
DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]


class HasDtype(Protocol):
    """What stands for a dtype, such as `jax.numpy.float32`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        ...


# As `jax.typing.DTypeLike`, but for text that names no dtype with kernels.
Dtype: TypeAlias = DtypeName | type[Any] | np.dtype[Any] | HasDtype

# The tiers of the row kernels that can be forced.
Tier: TypeAlias = Literal["warp", "block", "block_smem", "cluster", "block_uncached", "spread"]

# The rungs of the SGEMM ladder.
Algorithm: TypeAlias = Literal[
    "naive", "block_tile", "thread_tile", "warp_tile", "split_tile", "pipelined", "tensor"
]

Implementation: TypeAlias = Literal["ffi", "xla"]
# Who multiplies operands that no kernel serves.
OtherDtypes: TypeAlias = Literal["xla"]
# Of `dot_product_attention` alone.
AttentionImplementation: TypeAlias = Literal["ffi", "xla", "cudnn"]

# What becomes of the losses of rows.
Reduction: TypeAlias = Literal["none", "mean", "sum"]

# What the logits of a linear layer are rounded to, where that is not the dtype of its operands.
LogitsDtype: TypeAlias = Literal["float32"]

# Whose products a plan of that is for.
PlanPlatform: TypeAlias = Literal["cuda", "cpu"]

# The result for a row, or a query, that sees nothing.
EmptyRows: TypeAlias = Literal["zero", "mean"]

# The row operations, as plans name them.
Operation: TypeAlias = Literal[
    "softmax_fwd",
    "log_softmax_fwd",
    "softmax_grad",
    "log_softmax_grad",
    "log_softmax_jvp",
    "masked_softmax_fwd",
    "biased_softmax_fwd",
    "masked_softmax_grad",
    "logsumexp_fwd",
    "logsumexp_grad",
    "logsumexp_jvp",
    "cross_entropy_fwd",
    "cross_entropy_fwd_grad",
    "cross_entropy_grad",
]

# GPUs that plans know by name.
DeviceName: TypeAlias = Literal[
    "a100", "rtx3090", "l4", "rtx4090", "h100", "h200", "b200", "rtx5090"
]


class Device(Protocol):
    """A `jax.Device`, which JAX does not export in a form that type checkers take for a type."""

    @property
    def platform(self) -> str:
        """Such as "gpu"."""
        ...

    @property
    def local_hardware_id(self) -> int | None:
        """The ordinal of the GPU on this machine."""
        ...
