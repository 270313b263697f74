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

DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]
"""Storage types that have kernels."""


class HasDtype(Protocol):
    """What stands for a dtype, such as `jax.numpy.float32`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        ...


Dtype: TypeAlias = DtypeName | type[Any] | np.dtype[Any] | HasDtype
"""As `jax.typing.DTypeLike`, but for text that names no dtype with kernels."""

Tier: TypeAlias = Literal["warp", "block", "block_smem", "cluster", "block_uncached", "spread"]
"""The tiers of the row kernels that can be forced."""

Algorithm: TypeAlias = Literal[
    "naive", "block_tile", "thread_tile", "warp_tile", "split_tile", "pipelined", "thin", "tensor"
]
"""The rungs of the SGEMM ladder."""

Implementation: TypeAlias = Literal["ffi", "xla"]
"""What runs: "ffi" this package's kernels, or an error where there are none; "xla" plain JAX."""

OtherDtypes: TypeAlias = Literal["xla"]
"""Who multiplies operands that no kernel serves."""

AttentionImplementation: TypeAlias = Literal["ffi", "xla", "cudnn"]
"""What runs in `dot_product_attention`: "ffi" as above, "xla" is jax.nn's own, "cudnn" is cuDNN's."""

Reduction: TypeAlias = Literal["none", "mean", "sum"]
"""What becomes of the losses of rows."""

LogitsDtype: TypeAlias = Literal["float32"]
"""What the logits of a linear layer are rounded to, where that is not the dtype of its operands."""

PlanPlatform: TypeAlias = Literal["cuda", "cpu"]
"""Whose products a plan of `linear_cross_entropy` is for."""

EmptyRows: TypeAlias = Literal["zero", "mean"]
"""The result for a row, or a query, that sees nothing."""

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
"""The row operations, as plans name them."""

DeviceName: TypeAlias = Literal[
    "a100", "rtx3090", "l4", "rtx4090", "h100", "h200", "b200", "rtx5090"
]
"""GPUs that plans know by name."""


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
