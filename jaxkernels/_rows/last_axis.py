"""Any axes of an array as the last one, along which the kernels reduce.

Owns: the transpose and the merge, and what they mean for an explicit sharding. Must not know: what is
reduced, or how a result comes back.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxkernels._core import compat


def order(ndim: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of an array, those in `axes` (ascending) last."""
    return tuple(d for d in range(ndim) if d not in axes) + axes


def moved_last(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`x` with the dimensions `axes` (ascending) behind all others."""
    return jnp.transpose(x, order(x.ndim, axes))


def unsharded_spec(x: jax.Array, last: int) -> PartitionSpec:
    """The sharding in the type of `x`, its `last` last dimensions gathered."""
    return PartitionSpec(*compat.explicit_spec(x)[: x.ndim - last], *[None] * last)


def merged(x: jax.Array, last: int) -> jax.Array:
    """`x` with its `last` last dimensions as one.

    An explicit sharding of the merged dimensions has no counterpart in the merged array: they are
    gathered, as the kernel would.
    """
    kept, spec = x.shape[: x.ndim - last], unsharded_spec(x, last)
    gathered = x if compat.explicit_spec(x) == spec else compat.reshard(x, spec)
    return gathered.reshape(*kept, math.prod(x.shape[x.ndim - last :]))
