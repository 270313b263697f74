"""sgemm: how its operands, flags and factors become one matrix product.

Owns: ranks that differ, and factors that are known only when the program runs. Must not know: what a
factor may be (`checks`), or how a product is computed (`primitive`).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._sgemm import checks, contraction, primitive
from jaxkernels._sgemm.scale import scale
from jaxkernels.typing import Algorithm, Implementation


@eager.jit_when_eager(operands=3, traced=5)
def apply(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None,
    alpha: float | jax.Array,
    beta: float | jax.Array,
    trans_a: bool | int,
    trans_b: bool | int,
    algorithm: Algorithm | None,
    implementation: Implementation | None,
) -> jax.Array:
    """What `jaxkernels.sgemm` returns; its factors are floats or arrays of shape ()."""
    a, b = checks.as_operands("sgemm", a, b)
    operands = [a, b]
    if c is not None:
        operands.append(validate.as_array("sgemm", "c", c))
    for name, x in zip("abc", operands, strict=False):
        checks.check_float32("sgemm", name, x)
    rank = max(a.ndim, b.ndim, 2)
    options = contraction.options_of(
        algorithm,
        implementation,
        trans_a=checks.flag("trans_a", trans_a),
        trans_b=checks.flag("trans_b", trans_b),
        alpha=1.0 if isinstance(alpha, jax.Array) else alpha,
        beta=0.0 if isinstance(beta, jax.Array) else beta,
    )
    for name, x in (("a", a), ("b", b)):
        if x.ndim < 2:
            raise ValueError(f"sgemm: {name} must be a matrix; got shape {x.shape}")
    operands[:2] = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    product_of = primitive.multiply
    if checks.asks_for_xla(algorithm, implementation):
        jax.eval_shape(functools.partial(primitive.multiply, options=options), *operands)
        product_of = primitive.reference
    if not isinstance(alpha, jax.Array) and not isinstance(beta, jax.Array):
        return product_of(*operands, options=options)
    # A factor that is known only when the program runs is applied by XLA.
    jax.eval_shape(functools.partial(primitive.multiply, options=options), *operands)
    without_c = dataclasses.replace(options, beta=0.0)
    result = product_of(*operands[:2], options=without_c)
    if isinstance(alpha, jax.Array):
        result = scale(alpha.astype(jnp.float32), result)
    if isinstance(beta, jax.Array):
        return result + scale(beta.astype(jnp.float32), operands[2])
    return result + beta * operands[2] if beta else result
