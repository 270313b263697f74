"""The two products of attention: any leading dimensions, heads that may share keys, any dtype.

Owns: the conversion of (..., length, heads, depth) arrays to operands of a product, and the choice of the
product. The scores have the shape (..., heads, q, k), so the softmax reads contiguous rows. Must not
know: masks, softmax, or the caller.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxkernels._attention import bfloat16_products as products
from jaxkernels._core import validate
from jaxkernels._sgemm import contraction

# A function like lax.dot_general: (lhs, rhs, dimension_numbers) -> product.
Dot = Callable[..., jax.Array]


def dot_of(dtype: Any, precision: Any = None, *, wide: bool = False) -> Dot:
    """The product for operands of one dtype; `wide` gives float32 for 16-bit and integer operands.

    Without a precision this package multiplies float32 operands in true float32; with one XLA does.
    """
    name = jnp.dtype(dtype).name
    if wide and jnp.issubdtype(dtype, jnp.integer):
        return _dot_of_integers
    if name == "float32" and precision is None:
        return contraction.batched_dot_general
    if name == "bfloat16" and precision is None:
        return _Bfloat16Dot(jnp.float32 if wide else jnp.bfloat16)
    if not wide or name not in ("bfloat16", "float16"):
        return functools.partial(lax.dot_general, precision=precision)
    return functools.partial(
        lax.dot_general, precision=precision, preferred_element_type=jnp.float32
    )


class _Bfloat16Dot(NamedTuple):
    """The product of bfloat16 operands without a user's precision."""

    dtype: Any  # of the result

    def __call__(self, lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
        """The product."""
        is_wide = self.dtype == jnp.float32
        return (products.wide_dot if is_wide else lax.dot_general)(lhs, rhs, numbers)


def _dot_of_integers(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
    """The float32 product of integers. On a GPU, XLA's own such product aborts the process."""
    return contraction.batched_dot_general(
        lhs.astype(jnp.float32), rhs.astype(jnp.float32), numbers
    )


def scores(query: jax.Array, key: jax.Array, dot: Dot) -> jax.Array:
    """The product (..., heads, q, k) of queries (..., q, heads, depth) and keys (..., k, key_heads, depth).

    Each key head serves heads / key_heads neighbouring query heads. Shared keys are not copied.
    """
    heads, key_heads = query.shape[-2], key.shape[-2]
    if heads == key_heads and isinstance(dot, _Bfloat16Dot) and products.are_likely(query, key):
        return products.product("W", query, key, dot.dtype)
    q_rows, k_rows = _heads_first(query), _heads_first(key)
    grouped = _grouped(q_rows, key_heads)
    product = dot(grouped, k_rows, _batched(k_rows.ndim - 2, grouped.ndim - 1, k_rows.ndim - 1))
    return _ungrouped(product, query.ndim)


def weighted_values(weights: jax.Array, value: jax.Array, dot: Dot) -> jax.Array:
    """The sums (..., q, heads, depth) of values (..., k, value_heads, depth), weighted (..., heads, q, k).

    Heads are shared as for the keys.
    """
    heads, value_heads = weights.shape[-3], value.shape[-2]
    is_bfloat16 = isinstance(dot, _Bfloat16Dot)
    if heads == value_heads and is_bfloat16 and products.are_likely(weights, value):
        return products.product("X", weights, value, dot.dtype)
    v_rows = _heads_first(value)
    grouped = _grouped(weights, value_heads)
    numbers = _batched(v_rows.ndim - 2, grouped.ndim - 1, v_rows.ndim - 2)
    return _heads_first(_ungrouped(dot(grouped, v_rows, numbers), weights.ndim))


def default_scale(depth: int) -> float:
    """The default scale, 1 / sqrt(depth); 1 if depth is 0, where all scores are 0."""
    return 1.0 / math.sqrt(depth) if depth else 1.0


def check_groups(function: str, heads: int, key_heads: int) -> None:
    """Raises ValueError unless every key head serves the same number of query heads."""
    if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
        raise ValueError(
            f"{function}: the number of query heads must be a multiple of the number of key/value "
            f"heads; got {heads} and {key_heads}"
        )


def check_fits(function: str, argument: str, operand: jax.Array, shape: Sequence[Any]) -> None:
    """Raises ValueError unless `operand` broadcasts to the shape of the scores."""
    try:
        fits = lax.broadcast_shapes(operand.shape, tuple(shape)) == tuple(shape)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"{function}: {argument} must broadcast to the shape {tuple(shape)} of the scores "
            f"(batch, heads, queries, keys); got {operand.shape}"
            f"{validate.side_advice(argument, operand.shape, tuple(shape))}"
        )


def check_means_no_batch(
    function: str, argument: str, shape: tuple[Any, ...], scores: tuple[Any, ...]
) -> None:
    """Raises ValueError for a 2D or 3D bias or mask whose first dimension may be meant for the batch."""
    if 1 < len(shape) < 4 and shape[0] == scores[0] and scores[0] != 1:
        aligned = tuple(range(4 - len(shape), 4))  # NumPy aligns the last dimensions
        raise ValueError(
            f"{function}: {argument} has shape {shape}, whose first dimension may be the batch"
            f"{validate.side_advice(argument, shape, scores)}, or "
            f"{validate.side_written(argument, aligned, 4)}"
        )


def _heads_first(x: jax.Array) -> jax.Array:
    """Swaps (..., length, heads, depth) and (..., heads, length, depth)."""
    return jnp.swapaxes(x, -3, -2)


def _grouped(x: jax.Array, groups: int) -> jax.Array:
    """(..., heads, rows, cols) to (..., groups, heads / groups, rows, cols), if these are fewer groups."""
    *batch, heads, rows, cols = x.shape
    if heads == groups:
        return x
    return x.reshape(*batch, groups, heads // groups, rows, cols)


def _ungrouped(x: jax.Array, rank: int) -> jax.Array:
    if x.ndim == rank:
        return x
    *batch, groups, members, rows, cols = x.shape
    return x.reshape(*batch, groups * members, rows, cols)


def _batched(batch: int, lhs_contracted: int, rhs_contracted: int) -> Any:
    """Dimension numbers in which the first `batch` dimensions of both operands are batch dimensions."""
    common = tuple(range(batch))
    return ((lhs_contracted,), (rhs_contracted,)), (common, common)
