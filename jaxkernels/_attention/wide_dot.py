"""The product of bfloat16 operands as float32.

Owns: which algorithm XLA is asked for. Must not know: attention.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def wide_dot(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
    """The product, by JAX's dimension numbers.

    jax.nn names the algorithm, so that derivatives are such products too. (It does the same for
    float16, where the cotangents would be rounded to float16, and which no CPU compiles.) Of a matrix
    and a vector XLA then rounds each product of two elements to bfloat16, so there it is not named:
    H200, scores of one query, depth 64, largest error: named 0.076, not named 2.2e-6.

    A derivative multiplies a float32 cotangent and an operand, and under strict promotion JAX lowers
    no product with an algorithm whose operands differ in dtype. There they are widened first, which
    gives the same bits on a CPU, and are kept for the derivative as float32.
    """
    if _has_vector(lhs, rhs, numbers):
        return lax.dot_general(lhs, rhs, numbers, preferred_element_type=jnp.float32)
    if jax.config.jax_numpy_dtype_promotion == "strict":  # pyright: ignore[reportAttributeAccessIssue]
        lhs, rhs = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    algorithm = lax.DotAlgorithmPreset.BF16_BF16_F32
    return lax.dot_general(
        lhs, rhs, numbers, precision=algorithm, preferred_element_type=jnp.float32
    )


def _has_vector(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> bool:
    """Whether an operand of a product is one line, for each member of the batch."""
    contracted, batched = numbers
    for x, *not_free in zip((lhs, rhs), contracted, batched, strict=True):
        of_lines = set(range(x.ndim)).difference(*not_free)
        if all(x.shape[dim] == 1 for dim in of_lines):
            return True
    return False
