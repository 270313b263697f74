"""Folds any leading dimensions of attention into one batch dimension.

Owns: the reshapes. Must not know: how attention is computed.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxkernels._attention.choice import TYPES_OF_CUDNN
from jaxkernels._attention.problem import Operands
from jaxkernels._core import compat


def operands(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
) -> Operands | None:
    """The operands with one batch dimension; None if flash attention cannot take them.

    Args:
        query: array of shape (..., q, heads, depth).
        key: array of shape (..., k, key_heads, depth).
        value: array of shape (..., k, key_heads, value_depth).
        bias: None, or an array that broadcasts to (..., heads, q, k).
        mask: None, or a boolean array that broadcasts to (..., heads, q, k).
    """
    batch = query.shape[:-3]
    sizes = (*query.shape, *key.shape)
    fits = key.shape == value.shape and query.dtype == key.dtype == value.dtype
    if not fits or query.dtype.name not in TYPES_OF_CUDNN:
        return None
    if any(not isinstance(size, int) or size == 0 for size in sizes):
        return None
    if len(batch) > 1 and compat.is_explicitly_sharded(query, key, value):
        return None  # reshape cannot fold explicitly sharded dimensions
    q, k, v = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in (query, key, value))
    return Operands(q, k, v, _side(bias, batch), _side(mask, batch))


def _side(x: jax.Array | None, batch: tuple[int, ...]) -> jax.Array | None:
    """Folds the batch dimensions of a bias or mask; one that the whole batch shares is not copied."""
    if x is None:
        return None
    x = x.reshape(*(1,) * (len(batch) + 3 - x.ndim), *x.shape)
    if math.prod(x.shape[:-3]) == 1:
        return x.reshape(1, *x.shape[-3:])
    x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return x.reshape(math.prod(batch), *x.shape[-3:])
