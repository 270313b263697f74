"""Checks the arguments of `jaxkernels.flax.dot_product_attention`, from Flax's layers or users.

Owns: its errors about hooks, shapes and dtypes. Must not know: Flax, or how attention is computed.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxkernels._attention import heads
from jaxkernels._core import validate

NAME = "jaxkernels.flax.dot_product_attention"


def check_hooks(precision: Any, einsum_dot_general: Any, qk: Any, weights_value: Any) -> None:
    """Raises Flax's errors for hooks that exclude each other."""
    if (qk is None) != (weights_value is None):
        raise ValueError(
            f"{NAME}: qk_attn_weights_einsum and attn_weights_value_einsum must be given together"
        )
    if qk is not None and (precision is not None or einsum_dot_general is not None):
        raise ValueError(
            f"{NAME}: precision or einsum_dot_general, and qk_attn_weights_einsum or "
            "attn_weights_value_einsum, exclude each other"
        )


def check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises for shapes that do not fit each other, and for a dtype without kernels."""
    shapes = f"got query {query.shape}, key {key.shape}, value {value.shape}"
    if not query.ndim == key.ndim == value.ndim or query.ndim < 3:
        raise ValueError(f"{NAME}: query, key and value must have one rank of at least 3; {shapes}")
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        raise ValueError(f"{NAME}: batch dimensions must be equal; {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{NAME}: query and key must have one depth; {shapes}")
    if key.shape[-3:-1] != value.shape[-3:-1]:
        raise ValueError(
            f"{NAME}: key and value must have one length and number of heads; {shapes}"
        )
    heads.check_groups(NAME, query.shape[-2], key.shape[-2])
    if query.dtype.name not in validate.DTYPES:
        raise TypeError(
            f"{NAME}: kernels exist for {', '.join(validate.DTYPES)}; got {query.dtype}"
        )


def check_equal_heads(query: jax.Array, key: jax.Array) -> None:
    """Raises for heads that share keys, which the einsum hooks do not support."""
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{NAME}: the einsum hooks need as many key heads as query heads; "
            f"got {key.shape[-2]} and {query.shape[-2]}"
        )
