"""Policies of `jax.checkpoint` that save the products of this package as well as XLA's.

`jax.checkpoint_policies` do not recognise our matmul, so the backward pass computes it again. Use the
policies of the same name in this module. They save JAX's products and those of `jaxkernels.matmul`,
`dot_general`, `sgemm` and `dot_product_attention`. Flash attention, which stores no scores, counts as one product
with batch dimensions; its output and one or two numbers per row are saved. Other policies of JAX work without a
change, and `jax.checkpoint_policies.save_from_both_policies` combines them with these.

* `dots_saveable`, also called `checkpoint_dots`: save all products.
* `dots_with_no_batch_dims_saveable`, also called `checkpoint_dots_with_no_batch_dims`: save products
  without batch dimensions, such as products with weights.
* `offload_dot_with_no_batch_dims`: the same, saved in another memory.

A dimension is a batch dimension if both operands have it, as in `jax.lax.dot_general`, and if its size is
not 1. Under `jax_remat3`, flash attention is computed again under every policy.

Example:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxkernels as jk
    >>> policy = jk.checkpoint_policies.dots_with_no_batch_dims_saveable
    >>> layer = jax.checkpoint(lambda x, w: jnp.sin(jk.matmul(x, w)), policy=policy)
    >>> gradient = jax.grad(lambda x, w: layer(x, w).sum(), argnums=(0, 1))
    >>> str(jax.make_jaxpr(gradient)(jnp.ones((2, 3)), jnp.ones((3, 4)))).count("jaxkernels_sgemm")
    3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from jaxkernels._attention import bfloat16_products, flash
from jaxkernels._core import compat
from jaxkernels._sgemm import primitive as sgemm_primitive
from jaxkernels._sgemm.options import Options, matrix_dims

# Dimension numbers of the scores, for queries and keys of shape (batch, length, heads, depth).
_OF_SCORES = (((3,), (3,)), ((0, 2), (0, 2)))
# Flash attention has no remat rule, because its derivative needs the log-sums besides the saved result.
compat.register_remat_rule(sgemm_primitive.sgemm_p)
compat.register_remat_rule(bfloat16_products.product_p)


@dataclasses.dataclass(frozen=True)
class _Policy:
    """Wraps a policy of JAX, and presents our products to it as `jax.lax.dot_general`."""

    of_jax: Callable[..., Any]

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Any:
        if primitive in (flash.attention_p, bfloat16_products.product_p):
            q, k = avals[:2]
            return self.of_jax(lax.dot_general_p, q, k, dimension_numbers=_OF_SCORES)
        if primitive is not sgemm_primitive.sgemm_p:
            return self.of_jax(primitive, *avals, **params)
        a, b, *_ = avals
        numbers = _dimension_numbers(a, b, params["options"])
        return self.of_jax(lax.dot_general_p, a, b, dimension_numbers=numbers)


def _dimension_numbers(a: Any, b: Any, options: Options) -> Any:
    """The product's numbers for `lax.dot_general`; a batch dimension of size 1 counts as free."""
    (_, k), (k_of_b, _) = matrix_dims(options)
    sizes = zip(a.shape[:-2], b.shape[:-2], strict=True)
    batch = tuple(d for d, pair in enumerate(sizes) if not any(map(sgemm_primitive.is_one, pair)))
    return ((a.ndim + k,), (b.ndim + k_of_b,)), (batch, batch)


checkpoint_dots = dots_saveable = _Policy(jax.checkpoint_policies.dots_saveable)
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable = _Policy(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable
)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Callable[..., Any]:
    """The policy that moves products without batch dimensions to another memory, and back.

    Example:
        >>> import jaxkernels as jk
        >>> policy = jk.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")

    Args:
        offload_src: kind of the memory of the product, such as "device".
        offload_dst: kind of the memory that keeps it, such as "pinned_host".

    Returns:
        The argument `policy` of `jax.checkpoint`.
    """
    return _Policy(jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst))
