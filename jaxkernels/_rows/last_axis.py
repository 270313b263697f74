"""Moves and merges any axes into the last one, which the kernels reduce.

Owns: the transpose, the merge and their explicit shardings. Must not know: what is reduced, or how a
result is moved back.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxkernels._core import compat


def order(ndim: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that moves `axes` (ascending) last."""
    return tuple(d for d in range(ndim) if d not in axes) + axes


def moved_last(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`x` with the dimensions `axes` (ascending) moved last."""
    return jnp.transpose(x, order(x.ndim, axes))


def unsharded_spec(x: jax.Array, last: int) -> PartitionSpec:
    """The explicit sharding of `x`, with its `last` last dimensions unsharded."""
    return PartitionSpec(*compat.explicit_spec(x)[: x.ndim - last], *[None] * last)


def merged(x: jax.Array, last: int) -> jax.Array:
    """`x` with its `last` last dimensions merged into one.

    Explicitly sharded dimensions are gathered first, because the merged one cannot keep their sharding.
    """
    kept, spec = x.shape[: x.ndim - last], unsharded_spec(x, last)
    gathered = x if compat.explicit_spec(x) == spec else compat.reshard(x, spec)
    return gathered.reshape(*kept, math.prod(x.shape[x.ndim - last :]))
