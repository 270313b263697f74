"""Types of the arguments of public functions: editors complete them, type checkers find misspellings.

The checks at run time read these lists with `typing.get_args`. Three lists are only for types: `Operation`
and `DeviceName` have their names from C++, and `LogitsDtype` lists the spellings of one dtype.

Example:
    >>> import typing
    >>> import jaxkernels.typing
    >>> typing.get_args(jaxkernels.typing.Implementation)
    ('ffi', 'xla')
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]
"""Storage types that have kernels."""


@runtime_checkable
class HasDtype(Protocol):
    """An object with a dtype, such as `jax.numpy.float32`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        ...


Dtype: TypeAlias = DtypeName | type[Any] | np.dtype[Any] | HasDtype
"""Like `jax.typing.DTypeLike`, without names of dtypes that have no kernels."""

Tier: TypeAlias = Literal["warp", "block", "block_smem", "cluster", "block_uncached"]
"""The tiers of the row kernels that `tier=` can select."""

Algorithm: TypeAlias = Literal[
    "naive", "block_tile", "thread_tile", "warp_tile", "split_tile", "pipelined", "thin", "tensor"
]
"""The rungs of the SGEMM ladder."""

Implementation: TypeAlias = Literal["ffi", "xla"]
"""The implementation: "ffi" runs this package's kernels, or raises an error; "xla" runs plain JAX."""

OtherDtypes: TypeAlias = Literal["xla"]
"""The implementation of products that have no kernel."""

AttentionImplementation: TypeAlias = Literal["ffi", "xla", "cudnn", "ffi_flash"]
"""The implementation of `dot_product_attention`: "ffi" is our softmax, "xla" is jax.nn's, "cudnn" is cuDNN's,
"ffi_flash" is our flash kernels, which store no scores."""

Reduction: TypeAlias = Literal["none", "mean", "sum"]
"""The reduction of the losses of rows."""

LogitsDtype: TypeAlias = Literal["float32"] | type[np.float32] | np.dtype[np.float32] | HasDtype
"""The dtype of the logits of a linear layer, if it is not the dtype of its operands."""

PlanPlatform: TypeAlias = Literal["cuda", "cpu"]
"""The platform of a plan of `linear_cross_entropy`."""

EmptyRows: TypeAlias = Literal["zero", "mean"]
"""The result of a fully masked row or query."""

Operation: TypeAlias = Literal[
    "softmax_fwd",
    "log_softmax_fwd",
    "softmax_grad",
    "log_softmax_grad",
    "masked_softmax_fwd",
    "biased_softmax_fwd",
    "masked_softmax_grad",
    "logsumexp_fwd",
    "logsumexp_grad",
    "rms_norm_fwd",
    "rms_norm_grad",
    "cross_entropy_fwd",
    "cross_entropy_fwd_grad",
    "cross_entropy_grad",
]
"""The row operations, as plans name them."""

DeviceName: TypeAlias = Literal[
    "a100",
    "rtx3090",
    "a10",
    "l4",
    "l40s",
    "rtx4090",
    "h20",
    "h100",
    "h200",
    "gh200",
    "b200",
    "rtx5090",
]
"""GPUs that plans know by name. Plans take upper-case letters, too."""


@runtime_checkable
class Device(Protocol):
    """A `jax.Device`. JAX does not export it in a form that type checkers accept as a type."""

    @property
    def platform(self) -> str:
        """The platform, such as "gpu"."""
        ...

    @property
    def local_hardware_id(self) -> int | None:
        """The ordinal of the GPU on this machine."""
        ...
